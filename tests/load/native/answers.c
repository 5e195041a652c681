#include "answers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    STREAMS_MAX = WORDS * WORDS,
    FRAMING_TOKENS = 4, /* <|channel|>final<|message|> before the words, <|return|> behind them */
    HEAD_SIZE = 256,
};

static Tape tape;
static Marks marks;
static Connection *streams[STREAMS_MAX];
static size_t running;
static bool is_taken[STREAMS_MAX];
static unsigned last_slot;

static const char MODELS[] =
    "{\"object\":\"list\",\"data\":[{\"id\":\"openai/gpt-oss-20b\",\"object\":\"model\",\"created\":1795216025,"
    "\"owned_by\":\"vllm\",\"root\":\"openai/gpt-oss-20b\",\"parent\":null,\"max_model_len\":131072}]}";
static const char VERSION[] = "{\"version\":\"0.32.0\"}";
/* What sglang-router asks its workers, whose own kind answers so. */
static const char WORKER[] =
    "{\"model_path\":\"openai/gpt-oss-20b\",\"served_model_name\":\"openai/gpt-oss-20b\","
    "\"tokenizer_path\":\"\",\"is_generation\":true}";

void answers_begin(Tape of, Marks into) {
    tape = of;
    marks = into;
}

double marks_rate(void) { return marks.header->rate_per_s; }
size_t streams_running(void) { return running; }
Connection *stream_number(size_t index) { return streams[index]; }

bool streams_runnable(void) {
    for (size_t i = 0; i < running; i++)
        if (streams[i]->unsent.length == 0)
            return true;
    return false;
}

static void send_bytes(Connection *connection, const char *data, size_t length) {
    if (connection->unsent.length == 0) {
        ssize_t sent = write(connection->fd, data, length);
        if (sent < 0 && errno != EAGAIN)
            connection->is_broken = true;
        size_t done = sent > 0 ? (size_t)sent : 0;
        data += done;
        length -= done;
    }
    if (length > 0 && !connection->is_broken)
        buffer_append(&connection->unsent, data, length);
}

void send_unsent(Connection *connection) {
    ssize_t sent = write(connection->fd, connection->unsent.data, connection->unsent.length);
    if (sent > 0)
        buffer_drop(&connection->unsent, (size_t)sent);
    else if (sent < 0 && errno != EAGAIN)
        connection->is_broken = true;
}

static void send_document(Connection *connection, const char *data, size_t length) {
    char head[HEAD_SIZE];
    int size = snprintf(head, sizeof head,
                        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %zu\r\n"
                        "content-type: application/json\r\n\r\n",
                        length);
    Buffer answer = {0};
    buffer_append(&answer, head, (size_t)size);
    buffer_append(&answer, data, length);
    send_bytes(connection, answer.data, answer.length);
    buffer_free(&answer);
}

/* The slot that was free the longest: a reader may still want the times of those just ended. */
static unsigned take_slot(void) {
    for (size_t tried = 0; tried < marks.slots; tried++) {
        last_slot = (last_slot + 1) % (unsigned)marks.slots;
        if (!is_taken[last_slot]) {
            is_taken[last_slot] = true;
            return last_slot;
        }
    }
    errno = 0;
    die("more streams than slots");
}

static void answer_with_stream(Connection *connection, const Dialect *dialect, size_t words) {
    connection->dialect = dialect;
    connection->words = words;
    connection->position = 0;
    connection->slot = take_slot();
    connection->index = running;
    streams[running++] = connection;
    send_bytes(connection, dialect->opening.data, dialect->opening.length);
    stream_step(connection);
}

static void answer_with_document(Connection *connection, const Dialect *dialect, size_t words) {
    unsigned slot = take_slot();
    Buffer document = {0};
    buffer_append(&document, dialect->document_head.data, dialect->document_head.length);
    for (size_t position = 0; position < words; position++)
        buffer_append(&document, tape.words + word_at(slot, position) * WORD_LENGTH, WORD_LENGTH);
    buffer_append(&document, dialect->document_tail.data, dialect->document_tail.length);
    send_document(connection, document.data, document.length);
    buffer_free(&document);
    is_taken[slot] = false;
}

void stream_step(Connection *connection) {
    const Dialect *dialect = connection->dialect;
    if (connection->position == connection->words) {
        send_bytes(connection, dialect->closing.data, dialect->closing.length);
        stream_forget(connection);
        return;
    }
    uint64_t *mark = marks_at(&marks, connection->slot, connection->position);
    if (mark != NULL)
        *mark = now_ns();
    Bytes frame = dialect->words[word_at(connection->slot, connection->position++)];
    send_bytes(connection, frame.data, frame.length);
}

void stream_forget(Connection *connection) {
    if (connection->dialect == NULL)
        return;
    connection->dialect = NULL;
    is_taken[connection->slot] = false;
    streams[connection->index] = streams[--running];
    streams[connection->index]->index = connection->index;
}

/* The number behind a key of the body; `otherwise` without the key. */
static size_t number_of(const char *body, const char *key, size_t otherwise) {
    const char *found = strstr(body, key);
    if (found == NULL)
        return otherwise;
    found += strlen(key);
    return strtoul(found + strspn(found, ": "), NULL, 10);
}

static bool is_streamed(const char *body) {
    const char *found = strstr(body, "\"stream\"");
    if (found == NULL)
        return false;
    found += strlen("\"stream\"");
    return strncmp(found + strspn(found, ": "), "true", 4) == 0;
}

static void answer_post(Connection *connection, const char *path, const char *body) {
    size_t tokens = number_of(body, "\"max_tokens\"", 0);
    tokens = number_of(body, "\"max_output_tokens\"", tokens);
    tokens = number_of(body, "\"max_completion_tokens\"", tokens);
    size_t words = tokens > FRAMING_TOKENS ? tokens - FRAMING_TOKENS : 0;
    for (int i = 0; i < DIALECTS; i++) {
        const Dialect *dialect = &tape.dialects[i];
        if (strncmp(path, dialect->path.data, dialect->path.length) != 0 || path[dialect->path.length] != ' ')
            continue;
        if (is_streamed(body))
            answer_with_stream(connection, dialect, words);
        else
            answer_with_document(connection, dialect, words);
        return;
    }
    send_document(connection, "{}", 2);
}

static void answer_get(Connection *connection, const char *path) {
    if (strncmp(path, "/v1/models ", 11) == 0)
        send_document(connection, MODELS, sizeof MODELS - 1);
    else if (strncmp(path, "/version ", 9) == 0)
        send_document(connection, VERSION, sizeof VERSION - 1);
    else if (strncmp(path, "/health", 7) == 0)
        send_document(connection, "", 0);
    else
        send_document(connection, WORKER, sizeof WORKER - 1);
}

/* Where the body ends that begins at `start`; 0 while it is not there. */
static size_t body_end(const char *received, size_t start, size_t length) {
    const char *field = strcasestr(received, "\r\ncontent-length:");
    if (field != NULL && field < received + start) {
        size_t end = start + strtoul(field + strlen("\r\ncontent-length:"), NULL, 10);
        return end <= length ? end : 0;
    }
    field = strcasestr(received, "\r\ntransfer-encoding: chunked");
    if (field == NULL || field >= received + start)
        return start;
    const char *last = strstr(received + start, "\r\n0\r\n\r\n");
    return last == NULL ? 0 : (size_t)(last - received) + strlen("\r\n0\r\n\r\n");
}

bool answer_next(Connection *connection) {
    Buffer *received = &connection->received;
    if (connection->dialect != NULL || connection->is_broken || received->length == 0)
        return false;
    received->data[received->length] = '\0';
    const char *head_end = strstr(received->data, "\r\n\r\n");
    if (head_end == NULL)
        return false;
    size_t start = (size_t)(head_end - received->data) + 4;
    size_t end = body_end(received->data, start, received->length);
    if (end == 0)
        return false;
    const char *path = strchr(received->data, ' ');
    char next = received->data[end];
    received->data[end] = '\0';
    if (path != NULL && strncmp(received->data, "POST", 4) == 0)
        answer_post(connection, path + 1, received->data + start);
    else if (path != NULL)
        answer_get(connection, path + 1);
    received->data[end] = next;
    buffer_drop(received, end);
    return true;
}
