/* Bytes of one HTTP/1.1 answer, in any pieces -> its status and body. */
#ifndef ANSWER_READER_H
#define ANSWER_READER_H

#include "shared.h"

typedef struct {
    enum { IN_HEAD, IN_SIZED_BODY, IN_CHUNK_SIZE, IN_CHUNK, BEHIND_CHUNK, IN_TRAILER, AT_END } where;
    Buffer head; /* or the line of a chunk's size */
    size_t left; /* bytes of the body or chunk to come */
    int status;
    bool is_last; /* the server closes the connection behind it */
} AnswerReader;

typedef void TakeBody(void *who, const char *data, size_t length);

void answer_begin(AnswerReader *reader);
/* Hands on what is body. `reader->where` is AT_END once the answer is whole. */
void answer_feed(AnswerReader *reader, const char *data, size_t length, TakeBody *take, void *who);

#endif
