# In the place of prom/prometheus: Debian's, with the user, the folder and the wget of the official image.
FROM localhost/debian
RUN apt-get update \
 && apt-get install --yes --no-install-recommends prometheus wget \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner nobody --group nogroup /prometheus
VOLUME /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
