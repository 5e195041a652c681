# In the place of haproxy:3.2: Debian's, with the user, the file and the signal of the official image.
FROM localhost/debian
RUN apt-get update \
 && apt-get install --yes --no-install-recommends haproxy \
 && rm -rf /var/lib/apt/lists/*
COPY --chmod=755 haproxy-entrypoint.sh /usr/local/bin/
USER 99:99
STOPSIGNAL SIGUSR1
ENTRYPOINT ["haproxy-entrypoint.sh"]
CMD ["haproxy", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
