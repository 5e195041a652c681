#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_MIN = 4096, MARKS_OFFSET = 4096 };

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

_Noreturn void die(const char *what) {
    if (errno != 0)
        perror(what);
    else
        fprintf(stderr, "%s\n", what);
    exit(1);
}

void buffer_reserve(Buffer *buffer, size_t more) {
    size_t needed = buffer->length + more + 1;
    if (needed <= buffer->capacity)
        return;
    size_t capacity = buffer->capacity ? buffer->capacity : BUFFER_MIN;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(buffer->data, capacity);
    if (data == NULL)
        die("realloc");
    buffer->data = data;
    buffer->capacity = capacity;
}

void buffer_append(Buffer *buffer, const char *data, size_t length) {
    buffer_reserve(buffer, length);
    memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
}

void buffer_drop(Buffer *buffer, size_t length) {
    buffer->length -= length;
    memmove(buffer->data, buffer->data + length, buffer->length);
}

void buffer_free(Buffer *buffer) {
    free(buffer->data);
    *buffer = (Buffer){0};
}

Buffer file_read(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        die(path);
    Buffer content = {0};
    size_t got;
    do {
        buffer_reserve(&content, 1 << 16);
        got = fread(content.data + content.length, 1, 1 << 16, file);
        content.length += got;
    } while (got > 0);
    fclose(file);
    content.data[content.length] = '\0';
    return content;
}

/* The next piece of the tape: its length in four bytes, the lowest first, then its bytes. */
static Bytes next_piece(const Buffer *tape, size_t *at) {
    uint32_t length;
    if (*at + sizeof length > tape->length)
        die("the tape is cut off");
    memcpy(&length, tape->data + *at, sizeof length);
    *at += sizeof length;
    if (*at + length > tape->length)
        die("the tape is cut off");
    Bytes piece = {tape->data + *at, length};
    *at += length;
    return piece;
}

Tape tape_read(const char *path) {
    Buffer content = file_read(path);
    size_t at = 0;
    Tape tape;
    Bytes words = next_piece(&content, &at);
    if (words.length != WORDS * WORD_LENGTH)
        die("the tape has other words");
    tape.words = words.data;
    for (int i = 0; i < DIALECTS; i++) {
        Dialect *dialect = &tape.dialects[i];
        dialect->path = next_piece(&content, &at);
        dialect->opening = next_piece(&content, &at);
        for (int word = 0; word < WORDS; word++)
            dialect->words[word] = next_piece(&content, &at);
        dialect->closing = next_piece(&content, &at);
        dialect->document_head = next_piece(&content, &at);
        dialect->document_tail = next_piece(&content, &at);
    }
    return tape;
}

unsigned word_at(unsigned slot, size_t position) {
    if (position == 0)
        return slot / WORDS;
    if (position == 1)
        return slot % WORDS;
    return (unsigned)((position * 7 + slot) % WORDS);
}

Marks marks_map(const char *path, size_t slots, size_t positions) {
    if (slots == 0 || slots > WORDS * WORDS)
        die("too many slots");
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0)
        die(path);
    size_t size = MARKS_OFFSET + slots * positions * sizeof(uint64_t);
    if (ftruncate(file, (off_t)size) != 0)
        die("ftruncate");
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED)
        die("mmap");
    close(file);
    return (Marks){(volatile MarksHeader *)mapped, (uint64_t *)(mapped + MARKS_OFFSET), slots, positions};
}

uint64_t *marks_at(const Marks *marks, unsigned slot, size_t position) {
    return position < marks->positions ? &marks->sent_ns[slot * marks->positions + position] : NULL;
}
