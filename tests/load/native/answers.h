/* One connection of the backend, and what it is answered. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "shared.h"

typedef struct {
    int fd;
    Buffer received, unsent; /* `unsent`: what the socket did not take yet */
    uint32_t watched;        /* what the event loop was told to wait for */
    bool is_broken;          /* the client is gone: to be closed */
    /* The running stream, if any. */
    const Dialect *dialect;
    unsigned slot;
    size_t position, words, index;
} Connection;

void answers_begin(Tape tape, Marks marks);
double marks_rate(void);

/* Takes the next whole request from what was received and begins to answer; false without one, or
 * while a stream runs. */
bool answer_next(Connection *connection);
void send_unsent(Connection *connection);

/* Sends the next word, or the closing behind the last one. */
void stream_step(Connection *connection);
void stream_forget(Connection *connection);
Connection *stream_number(size_t index);
size_t streams_running(void);
/* Whether any stream's reader has room. */
bool streams_runnable(void);

#endif
