/* What one answer says, checked word by word, with the times at which words were read. */
#ifndef TRANSCRIPT_H
#define TRANSCRIPT_H

#include "shared.h"

#include <stdio.h>

/* Microseconds, as many as there are. */
typedef struct {
    float *values;
    size_t count, capacity;
} Samples;

void samples_add(Samples *samples, uint64_t from_ns, uint64_t to_ns);
/* The value below which a share of them is; sorts them. 0 without any. */
double samples_quantile(Samples *samples, double share);

typedef enum { COMPLETIONS, CHAT, RESPONSES } Kind;

/* What is the same for all answers of a load, and what is counted over all of them. `times`, if not
 * NULL, is given when each word was sent and read: two numbers of 8 bytes, in nanoseconds. */
typedef struct {
    Kind kind;
    bool is_streamed;
    size_t words; /* in every answer */
    const char *vocabulary;
    const Marks *marks;
    Samples first, latency, gap;
    size_t words_read, events_read;
    FILE *times;
} Ledger;

/* `wrong` says what is, if anything. */
typedef struct {
    Ledger *ledger;
    Buffer line;
    uint64_t asked_ns, read_ns, last_ns;
    char partial[WORD_LENGTH];
    size_t partial_length, words;
    unsigned slot;
    bool is_ended;
    const char *wrong;
} Transcript;

void transcript_begin(Transcript *transcript, Ledger *ledger, uint64_t asked_ns);
/* Takes in bytes of the body that were read at `read_ns`; a TakeBody. */
void transcript_take(void *transcript, const char *data, size_t length);
/* The body is whole: NULL, or what is wrong with it. */
const char *transcript_verdict(Transcript *transcript);

#endif
