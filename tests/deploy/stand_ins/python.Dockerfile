# In the place of python:3.12-slim: Debian's own Python, and the certificates that this machine trusts.
FROM localhost/debian
RUN ln -s python3 /usr/bin/python
COPY certificates.pem /etc/ssl/certs/ca-certificates.crt
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt
