/* What the backend and the load generator have in common: a clock, a buffer, the tape and the marks. */
#ifndef SHARED_H
#define SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WORD_LENGTH = 4, /* bytes of every word: a space and three letters */
    WORDS = 64,      /* different words */
    DIALECTS = 3,
};

uint64_t now_ns(void);

/* Says what failed, with errno's reason, and ends the process. */
_Noreturn void die(const char *what);

/* Bytes that grow; `data` always has room for a terminating NUL. */
typedef struct {
    char *data;
    size_t length, capacity;
} Buffer;

void buffer_reserve(Buffer *buffer, size_t more);
void buffer_append(Buffer *buffer, const char *data, size_t length);
/* Drops the first bytes. */
void buffer_drop(Buffer *buffer, size_t length);
void buffer_free(Buffer *buffer);
/* The whole of a file. */
Buffer file_read(const char *path);

typedef struct {
    const char *data;
    size_t length;
} Bytes;

/* How a path answers: an opening, then a frame for each word, then a closing; or one document. */
typedef struct {
    Bytes path, opening, words[WORDS], closing, document_head, document_tail;
} Dialect;

/* The file that tests/load/tape.py writes: WORDS words, then DIALECTS dialects. */
typedef struct {
    const char *words;
    Dialect dialects[DIALECTS];
} Tape;

Tape tape_read(const char *path);

/* Which word comes at a position of the stream in a slot: the first two spell the slot. */
unsigned word_at(unsigned slot, size_t position);

/* Shared memory: the pace, which others may change between streams, and when each word was sent. */
typedef struct {
    double rate_per_s; /* words of each stream; 0: as fast as the socket takes them */
} MarksHeader;

typedef struct {
    volatile MarksHeader *header;
    uint64_t *sent_ns;
    size_t slots, positions;
} Marks;

/* Maps the file; makes it where there is none. At most WORDS * WORDS slots. */
Marks marks_map(const char *path, size_t slots, size_t positions);
/* Where the time of a word is kept; NULL beyond the last position. */
uint64_t *marks_at(const Marks *marks, unsigned slot, size_t position);

#endif
