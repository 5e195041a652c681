/* The load: `streams` connections, each of which sends the same request again and again.
 *
 * With --follow PORT a response is only created, then hung up on, and read from that port.
 * With --times FILE the file is given the times of every word.
 * Every answer is checked; the first wrong one ends the process with code 1 and the reason. What was
 * measured is one JSON object on standard output: times in microseconds, of all answers.
 */
#include "answer_reader.h"
#include "transcript.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EVENTS_MAX = 1024, READ_SIZE = 1 << 18, PORTS_MAX = 16, WAIT_MS = 50, SHOWN = 500 };

typedef struct {
    int fd, port;
    bool is_creating; /* waits for the id of the response, which is to be read elsewhere */
    Buffer created;
    AnswerReader answer;
    Transcript transcript;
} Client;

static struct {
    int ports[PORTS_MAX], follow_port;
    size_t port_count, streams, requests;
    const char *path, *key, *body;
    double ramp_s, seconds_max;
} load;
static Ledger ledger;
static Samples whole; /* from the request to the end of the answer */
static Buffer request;
static size_t begun, finished, bytes_read;
static int poller;

static void send_all(int fd, const char *data, size_t length) {
    while (length > 0) {
        ssize_t sent = write(fd, data, length);
        if (sent < 0 && errno != EAGAIN)
            die("cannot send a request");
        if (sent < 0)
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        size_t done = sent > 0 ? (size_t)sent : 0;
        data += done;
        length -= done;
    }
}

static void connect_client(Client *client, int port) {
    int one = 1;
    client->fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(client->fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("cannot connect");
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(client->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, client->fd, &event) != 0)
        die("epoll_ctl");
}

static void hang_up(Client *client) {
    close(client->fd);
    client->fd = -1;
}

static void ask(Client *client) {
    if (begun == load.requests) {
        if (client->fd >= 0)
            hang_up(client);
        return;
    }
    begun++;
    if (client->fd < 0)
        connect_client(client, client->port);
    client->is_creating = load.follow_port != 0;
    client->created.length = 0;
    answer_begin(&client->answer);
    transcript_begin(&client->transcript, &ledger, now_ns());
    send_all(client->fd, request.data, request.length);
}

static _Noreturn void refuse(const Client *client, const char *why, const char *data, size_t length) {
    int shown = length < SHOWN ? (int)length : SHOWN;
    fprintf(stderr, "answer %zu: %s (status %d, %zu words of %zu)\n%.*s\n", finished + 1, why,
            client->answer.status, client->transcript.words, ledger.words, shown, data);
    exit(1);
}

/* Reads what is said of a new response until its id is known, then follows it on the other port. */
static void follow(Client *client, const char *data, size_t length) {
    Buffer *created = &client->created;
    buffer_append(created, data, length);
    created->data[created->length] = '\0';
    if (created->length >= 12 && strncmp(created->data, "HTTP/1.1 200", 12) != 0)
        refuse(client, "not created", created->data, created->length);
    const char *id = strstr(created->data, "\"id\":\"resp_");
    if (id == NULL || strchr(id += strlen("\"id\":\""), '"') == NULL)
        return;
    char head[1024];
    int size = snprintf(head, sizeof head,
                        "GET /v1/responses/%.*s?stream=true HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n"
                        "authorization: Bearer %s\r\n\r\n",
                        (int)strcspn(id, "\""), id, load.follow_port, load.key ? load.key : "none");
    if (size < 0 || (size_t)size >= sizeof head)
        die("the id or the key is too long");
    hang_up(client);
    connect_client(client, load.follow_port);
    client->is_creating = false;
    send_all(client->fd, head, (size_t)size);
}

static void on_readable(Client *client) {
    static char data[READ_SIZE];
    ssize_t got = read(client->fd, data, sizeof data);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0)
        refuse(client, "the connection was closed in the middle", "", 0);
    client->transcript.read_ns = now_ns();
    bytes_read += (size_t)got;
    if (client->is_creating) {
        follow(client, data, (size_t)got);
        return;
    }
    answer_feed(&client->answer, data, (size_t)got, transcript_take, &client->transcript);
    if (client->transcript.wrong != NULL)
        refuse(client, client->transcript.wrong, data, (size_t)got);
    if (client->answer.where != IN_HEAD && client->answer.status != 200)
        refuse(client, "refused", data, (size_t)got);
    if (client->answer.where != AT_END)
        return;
    const char *wrong = transcript_verdict(&client->transcript);
    if (wrong != NULL)
        refuse(client, wrong, data, (size_t)got);
    samples_add(&whole, client->transcript.asked_ns, client->transcript.read_ns);
    finished++;
    if (client->answer.is_last || load.follow_port != 0)
        hang_up(client);
    ask(client);
}

/* Clients begin one after the other, over the time of the ramp. */
static size_t due(uint64_t since_ns) {
    double share = load.ramp_s > 0 ? (double)(now_ns() - since_ns) / 1e9 / load.ramp_s : 1;
    size_t count = (size_t)(share * (double)load.streams) + 1;
    return count < load.streams ? count : load.streams;
}

static double run(Client *clients) {
    static struct epoll_event events[EVENTS_MAX];
    uint64_t since_ns = now_ns();
    size_t started = 0;
    while (finished < load.requests) {
        size_t wanted = due(since_ns);
        while (started < wanted)
            ask(&clients[started++]);
        int count = epoll_wait(poller, events, EVENTS_MAX, started < load.streams ? 1 : WAIT_MS);
        for (int i = 0; i < count; i++)
            on_readable(events[i].data.ptr);
        if ((double)(now_ns() - since_ns) / 1e9 > load.seconds_max) {
            fprintf(stderr, "%zu of %zu answers after %.0f s\n", finished, load.requests, load.seconds_max);
            exit(1);
        }
    }
    return (double)(now_ns() - since_ns) / 1e9;
}

static void report_times(const char *name, Samples *samples) {
    printf("\"%s_p50_us\":%.1f,\"%s_p90_us\":%.1f,\"%s_p99_us\":%.1f,\"%s_max_us\":%.1f,", name,
           samples_quantile(samples, 0.5), name, samples_quantile(samples, 0.9), name,
           samples_quantile(samples, 0.99), name, samples_quantile(samples, 1));
}

static void report(double seconds) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{");
    report_times("first", &ledger.first);
    report_times("latency", &ledger.latency);
    report_times("gap", &ledger.gap);
    report_times("whole", &whole);
    printf("\"requests\":%zu,\"words\":%zu,\"events\":%zu,\"bytes\":%zu,\"seconds\":%.6f,\"cpu_s\":%.6f}\n",
           finished, ledger.words_read, ledger.events_read, bytes_read, seconds, cpu_s);
}

static void set_ports(char *list) {
    for (char *port = strtok(list, ","); port != NULL && load.port_count < PORTS_MAX; port = strtok(NULL, ","))
        load.ports[load.port_count++] = atoi(port);
}

static void set_kind(const char *name) {
    ledger.kind = strcmp(name, "responses") == 0 ? RESPONSES : strcmp(name, "chat") == 0 ? CHAT : COMPLETIONS;
}

static FILE *file_write(const char *path) {
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        die(path);
    return file;
}

static void read_options(int count, char **arguments, Marks *marks, Tape *tape) {
    static const struct option options[] = {
        {"ports", required_argument, NULL, 'p'},     {"path", required_argument, NULL, 'u'},
        {"kind", required_argument, NULL, 'd'},      {"streams", required_argument, NULL, 'c'},
        {"requests", required_argument, NULL, 'n'},  {"words", required_argument, NULL, 'w'},
        {"body", required_argument, NULL, 'b'},      {"key", required_argument, NULL, 'k'},
        {"tape", required_argument, NULL, 't'},      {"marks", required_argument, NULL, 'm'},
        {"slots", required_argument, NULL, 's'},     {"positions", required_argument, NULL, 'l'},
        {"ramp", required_argument, NULL, 'r'},      {"seconds-max", required_argument, NULL, 'x'},
        {"documents", no_argument, NULL, 'j'},       {"follow", required_argument, NULL, 'f'},
        {"times", required_argument, NULL, 'i'},     {0},
    };
    const char *marks_path = "";
    size_t slots = 0, positions = 0;
    int option;
    ledger.is_streamed = true;
    while ((option = getopt_long(count, arguments, "", options, NULL)) != -1) {
        switch (option) {
        case 'p': set_ports(optarg); break;
        case 'u': load.path = optarg; break;
        case 'd': set_kind(optarg); break;
        case 'c': load.streams = strtoul(optarg, NULL, 10); break;
        case 'n': load.requests = strtoul(optarg, NULL, 10); break;
        case 'w': ledger.words = strtoul(optarg, NULL, 10); break;
        case 'b': load.body = optarg; break;
        case 'k': load.key = optarg; break;
        case 't': *tape = tape_read(optarg); break;
        case 'm': marks_path = optarg; break;
        case 's': slots = strtoul(optarg, NULL, 10); break;
        case 'l': positions = strtoul(optarg, NULL, 10); break;
        case 'r': load.ramp_s = atof(optarg); break;
        case 'x': load.seconds_max = atof(optarg); break;
        case 'j': ledger.is_streamed = false; break;
        case 'f': load.follow_port = atoi(optarg); break;
        case 'i': ledger.times = file_write(optarg); break;
        default: exit(2);
        }
    }
    if (load.port_count == 0 || load.streams == 0 || load.body == NULL || load.path == NULL || tape->words == NULL)
        die("--ports, --path, --streams, --body and --tape are needed");
    *marks = marks_map(marks_path, slots, positions);
}

static void write_request(void) {
    Buffer body = file_read(load.body);
    char head[1024];
    int size = snprintf(head, sizeof head,
                        "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\n"
                        "content-type: application/json\r\nauthorization: Bearer %s\r\n"
                        "content-length: %zu\r\n\r\n",
                        load.path, load.ports[0], load.key ? load.key : "none", body.length);
    if (size < 0 || (size_t)size >= sizeof head)
        die("the path or the key is too long");
    buffer_append(&request, head, (size_t)size);
    buffer_append(&request, body.data, body.length);
    buffer_free(&body);
}

int main(int count, char **arguments) {
    Marks marks;
    Tape tape = {0};
    read_options(count, arguments, &marks, &tape);
    ledger.vocabulary = tape.words;
    ledger.marks = &marks;
    write_request();
    poller = epoll_create1(0);
    Client *clients = calloc(load.streams, sizeof *clients);
    if (poller < 0 || clients == NULL)
        die("epoll_create1");
    for (size_t i = 0; i < load.streams; i++) {
        clients[i].fd = -1;
        clients[i].port = load.ports[i % load.port_count];
    }
    report(run(clients));
    return 0;
}
