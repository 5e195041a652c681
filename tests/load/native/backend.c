/* A backend that replays a tape: backend --port N --tape FILE --marks FILE --slots N --positions N
 *
 * One thread. Every stream gets one word in each step, in a write of its own, as vLLM sends a chunk
 * for each token; all streams step together, as an engine's do. The first word comes at once, so
 * that what is added to it can be measured. It answers what vLLM is asked by those who look at it.
 */
#include "answers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { EVENTS_MAX = 1024, BACKLOG = 4096, READ_SIZE = 65536, IDLE_MS = 1000 };

static int poller, timer;
static double pace_per_s; /* what the timer is set to */

static void watch(int fd, uint32_t events, void *who, int operation) {
    struct epoll_event event = {.events = events, .data.ptr = who};
    if (epoll_ctl(poller, operation, fd, &event) != 0)
        die("epoll_ctl");
}

static int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, BACKLOG) != 0)
        die("listen");
    getsockname(listener, (struct sockaddr *)&address, &length);
    printf("listening on http://127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void set_pace(double rate_per_s) {
    uint64_t every_ns = rate_per_s > 0 ? (uint64_t)(1e9 / rate_per_s) : 0;
    struct timespec interval = {(time_t)(every_ns / 1000000000u), (long)(every_ns % 1000000000u)};
    struct itimerspec times = {interval, interval};
    if (timerfd_settime(timer, 0, &times, NULL) != 0)
        die("timerfd_settime");
    pace_per_s = rate_per_s;
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Connection *connection = calloc(1, sizeof *connection);
        if (connection == NULL)
            die("calloc");
        connection->fd = fd;
        connection->watched = EPOLLIN;
        watch(fd, EPOLLIN, connection, EPOLL_CTL_ADD);
    }
}

static void close_connection(Connection *connection) {
    stream_forget(connection);
    close(connection->fd);
    buffer_free(&connection->received);
    buffer_free(&connection->unsent);
    free(connection);
}

/* Reads what there is; false when the client is gone. */
static bool read_all(Connection *connection) {
    Buffer *received = &connection->received;
    for (;;) {
        buffer_reserve(received, READ_SIZE);
        ssize_t got = read(connection->fd, received->data + received->length, READ_SIZE);
        if (got > 0)
            received->length += (size_t)got;
        else
            return got < 0 && errno == EAGAIN;
    }
}

static void on_connection(Connection *connection, uint32_t events) {
    if (events & EPOLLOUT)
        send_unsent(connection);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        if (!read_all(connection)) {
            close_connection(connection);
            return;
        }
        size_t before = streams_running();
        while (answer_next(connection)) {
        }
        if (before == 0 && streams_running() > 0 && marks_rate() != pace_per_s)
            set_pace(marks_rate());
    }
    if (connection->is_broken) {
        close_connection(connection);
        return;
    }
    uint32_t wanted = EPOLLIN | (connection->unsent.length ? EPOLLOUT : 0);
    if (wanted != connection->watched) {
        connection->watched = wanted;
        watch(connection->fd, wanted, connection, EPOLL_CTL_MOD);
    }
}

/* One word for every stream that is not waiting for its reader. Returns whether any moved. */
static bool step_all(void) {
    bool moved = false;
    for (size_t i = streams_running(); i-- > 0;) {
        Connection *connection = stream_number(i);
        if (connection->unsent.length > 0)
            continue;
        stream_step(connection);
        moved = true;
        if (connection->is_broken) {
            close_connection(connection);
        } else if (connection->unsent.length > 0) {
            connection->watched = EPOLLIN | EPOLLOUT;
            watch(connection->fd, connection->watched, connection, EPOLL_CTL_MOD);
        }
    }
    return moved;
}

static _Noreturn void serve(int listener) {
    static struct epoll_event events[EVENTS_MAX];
    static char timer_mark;
    bool moved = false;
    watch(listener, EPOLLIN, NULL, EPOLL_CTL_ADD);
    watch(timer, EPOLLIN, &timer_mark, EPOLL_CTL_ADD);
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS_MAX, moved ? 0 : IDLE_MS);
        bool is_due = false;
        for (int i = 0; i < count; i++) {
            uint64_t expirations;
            if (events[i].data.ptr == NULL)
                accept_all(listener);
            else if (events[i].data.ptr == &timer_mark)
                is_due = read(timer, &expirations, sizeof expirations) == sizeof expirations;
            else
                on_connection(events[i].data.ptr, events[i].events);
        }
        /* After all events, since a step may end a connection that one of them is about. */
        bool stepped = (pace_per_s == 0 || is_due) && step_all();
        moved = stepped && pace_per_s == 0;
        if (!moved && pace_per_s == 0 && streams_running() > 0)
            moved = streams_runnable();
    }
}

int main(int count, char **arguments) {
    static const struct option options[] = {
        {"port", required_argument, NULL, 'p'},  {"tape", required_argument, NULL, 't'},
        {"marks", required_argument, NULL, 'm'}, {"slots", required_argument, NULL, 's'},
        {"positions", required_argument, NULL, 'n'}, {0},
    };
    const char *tape = NULL, *marks = NULL;
    int port = 0, option;
    size_t slots = 0, positions = 0;
    while ((option = getopt_long(count, arguments, "", options, NULL)) != -1) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 't': tape = optarg; break;
        case 'm': marks = optarg; break;
        case 's': slots = strtoul(optarg, NULL, 10); break;
        case 'n': positions = strtoul(optarg, NULL, 10); break;
        default: return 2;
        }
    }
    if (tape == NULL || marks == NULL)
        die("--tape and --marks are needed");
    signal(SIGPIPE, SIG_IGN);
    answers_begin(tape_read(tape), marks_map(marks, slots, positions));
    poller = epoll_create1(0);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (poller < 0 || timer < 0)
        die("epoll_create1");
    serve(listen_on(port));
}
