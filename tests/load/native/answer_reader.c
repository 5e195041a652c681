#include "answer_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_MAX = 65536 };

void answer_begin(AnswerReader *reader) {
    reader->where = IN_HEAD;
    reader->head.length = 0;
    reader->left = 0;
    reader->status = 0;
    reader->is_last = false;
}

static void read_head(AnswerReader *reader) {
    char *head = reader->head.data;
    head[reader->head.length] = '\0';
    reader->status = strncmp(head, "HTTP/1.1 ", 9) == 0 ? atoi(head + 9) : -1;
    reader->is_last = strcasestr(head, "\r\nconnection: close") != NULL;
    const char *field = strcasestr(head, "\r\ncontent-length:");
    if (strcasestr(head, "\r\ntransfer-encoding: chunked") != NULL) {
        reader->where = IN_CHUNK_SIZE;
    } else {
        reader->left = field ? strtoul(field + strlen("\r\ncontent-length:"), NULL, 10) : 0;
        reader->where = reader->left > 0 ? IN_SIZED_BODY : AT_END;
    }
    reader->head.length = 0;
}

/* Takes bytes up to a line feed into `head`; sets `is_whole` when that came. Returns bytes taken. */
static size_t take_line(AnswerReader *reader, const char *data, size_t length, bool *is_whole) {
    const char *end = memchr(data, '\n', length);
    size_t taken = end ? (size_t)(end - data) + 1 : length;
    buffer_append(&reader->head, data, taken);
    if (reader->head.length > HEAD_MAX) {
        errno = 0;
        die("the head of an answer is too large");
    }
    *is_whole = end != NULL;
    return taken;
}

static void end_line(AnswerReader *reader) {
    Buffer *head = &reader->head;
    head->data[head->length] = '\0';
    if (reader->where == IN_HEAD) {
        if (head->length >= 4 && memcmp(head->data + head->length - 4, "\r\n\r\n", 4) == 0)
            read_head(reader);
        return;
    }
    if (reader->where == IN_CHUNK_SIZE) {
        reader->left = strtoul(head->data, NULL, 16);
        reader->where = reader->left > 0 ? IN_CHUNK : IN_TRAILER;
    } else if (reader->where == BEHIND_CHUNK) {
        reader->where = IN_CHUNK_SIZE;
    } else if (head->length <= 2) {
        reader->where = AT_END;
    }
    head->length = 0;
}

void answer_feed(AnswerReader *reader, const char *data, size_t length, TakeBody *take, void *who) {
    while (length > 0 && reader->where != AT_END) {
        size_t taken;
        if (reader->where == IN_SIZED_BODY || reader->where == IN_CHUNK) {
            taken = length < reader->left ? length : reader->left;
            take(who, data, taken);
            reader->left -= taken;
            if (reader->left == 0)
                reader->where = reader->where == IN_CHUNK ? BEHIND_CHUNK : AT_END;
        } else {
            bool is_whole;
            taken = take_line(reader, data, length, &is_whole);
            if (is_whole)
                end_line(reader);
        }
        data += taken;
        length -= taken;
    }
}
