#include "transcript.h"

#include <stdlib.h>
#include <string.h>

static const char *const TEXT_KEYS[] = {
    [COMPLETIONS] = "\"text\":",
    [CHAT] = "\"content\":",
    [RESPONSES] = "\"delta\":",
};

void samples_add(Samples *samples, uint64_t from_ns, uint64_t to_ns) {
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? 2 * samples->capacity : 4096;
        samples->values = realloc(samples->values, samples->capacity * sizeof *samples->values);
        if (samples->values == NULL)
            die("realloc");
    }
    samples->values[samples->count++] = (float)((double)((int64_t)(to_ns - from_ns)) / 1e3);
}

static int by_value(const void *one, const void *other) {
    float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

double samples_quantile(Samples *samples, double share) {
    if (samples->count == 0)
        return 0;
    qsort(samples->values, samples->count, sizeof *samples->values, by_value);
    return (double)samples->values[(size_t)((double)(samples->count - 1) * share)];
}

void transcript_begin(Transcript *transcript, Ledger *ledger, uint64_t asked_ns) {
    Buffer line = transcript->line;
    line.length = 0;
    *transcript = (Transcript){.ledger = ledger, .line = line, .asked_ns = asked_ns};
}

static void take_word(Transcript *transcript, const char *word) {
    Ledger *ledger = transcript->ledger;
    size_t position = transcript->words++;
    if (position < 2) { /* the slot is what these two say */
        unsigned index = 0;
        while (index < WORDS && memcmp(ledger->vocabulary + index * WORD_LENGTH, word, WORD_LENGTH) != 0)
            index++;
        if (index == WORDS)
            transcript->wrong = "a word that the backend does not know";
        transcript->slot = transcript->slot * WORDS + index;
        return;
    }
    unsigned expected = word_at(transcript->slot, position);
    if (memcmp(ledger->vocabulary + expected * WORD_LENGTH, word, WORD_LENGTH) != 0)
        transcript->wrong = "another word than the backend's in this place";
    if (transcript->wrong != NULL || !ledger->is_streamed) /* documents have no times of their words */
        return;
    const uint64_t *sent_ns = marks_at(ledger->marks, transcript->slot, position);
    if (sent_ns == NULL || transcript->slot >= ledger->marks->slots)
        return;
    samples_add(&ledger->latency, *sent_ns, transcript->read_ns);
    if (ledger->times != NULL)
        fwrite((uint64_t[]){*sent_ns, transcript->read_ns}, sizeof(uint64_t), 2, ledger->times);
}

/* Text of the answer; it may be cut anywhere. */
static void take_text(Transcript *transcript, const char *text, size_t length) {
    size_t before = transcript->words;
    for (size_t i = 0; i < length && transcript->wrong == NULL; i++) {
        transcript->partial[transcript->partial_length++] = text[i];
        if (transcript->partial_length == WORD_LENGTH) {
            transcript->partial_length = 0;
            take_word(transcript, transcript->partial);
        }
    }
    transcript->ledger->words_read += transcript->words - before;
}

/* The string behind a key of a line of JSON; its length, or 0 where there is none. The words need
 * no escapes, so that a backslash is only one more wrong character. */
static size_t find_string(const char *line, const char *key, const char **string) {
    for (const char *at = strstr(line, key); at != NULL; at = strstr(at, key)) {
        at += strlen(key);
        at += *at == ' ';
        if (*at != '"')
            continue;
        *string = at + 1;
        return strcspn(at + 1, "\"");
    }
    return 0;
}

static bool has_type(const char *line, const char *type) {
    const char *found;
    size_t length = strlen(type);
    for (const char *at = line; (at = strstr(at, "\"type\":")) != NULL; at++)
        if (find_string(at, "\"type\":", &found) == length && memcmp(found, type, length) == 0)
            return true;
    return false;
}

static bool is_end(const Transcript *transcript, const char *line) {
    if (transcript->ledger->kind == RESPONSES)
        return has_type(line, "response.completed");
    return strncmp(line + strspn(line, " "), "[DONE]", 6) == 0;
}

static void take_event(Transcript *transcript, const char *line) {
    Ledger *ledger = transcript->ledger;
    const char *text = NULL;
    size_t length = 0;
    if (ledger->kind != RESPONSES || has_type(line, "response.output_text.delta"))
        length = find_string(line, TEXT_KEYS[ledger->kind], &text);
    if (length == 0) {
        transcript->is_ended = transcript->is_ended || is_end(transcript, line);
        return;
    }
    if (transcript->is_ended)
        transcript->wrong = "text behind the end";
    ledger->events_read++;
    if (transcript->last_ns == 0)
        samples_add(&ledger->first, transcript->asked_ns, transcript->read_ns);
    else
        samples_add(&ledger->gap, transcript->last_ns, transcript->read_ns);
    transcript->last_ns = transcript->read_ns;
    take_text(transcript, text, length);
}

static void take_line(Transcript *transcript) {
    Buffer *line = &transcript->line;
    line->data[line->length] = '\0';
    if (strncmp(line->data, "data:", 5) == 0)
        take_event(transcript, line->data + 5);
    line->length = 0;
}

void transcript_take(void *who, const char *data, size_t length) {
    Transcript *transcript = who;
    if (!transcript->ledger->is_streamed) {
        buffer_append(&transcript->line, data, length);
        return;
    }
    while (length > 0) {
        const char *end = memchr(data, '\n', length);
        size_t taken = end ? (size_t)(end - data) + 1 : length;
        buffer_append(&transcript->line, data, taken);
        if (end != NULL)
            take_line(transcript);
        data += taken;
        length -= taken;
    }
}

/* A whole document: the text is in one piece. */
static void take_document(Transcript *transcript) {
    static const char *const DOCUMENT_KEYS[] = {
        [COMPLETIONS] = "\"text\":", [CHAT] = "\"content\":", [RESPONSES] = "\"text\":"};
    Buffer *document = &transcript->line;
    buffer_reserve(document, 0);
    document->data[document->length] = '\0';
    const char *text;
    size_t length = find_string(document->data, DOCUMENT_KEYS[transcript->ledger->kind], &text);
    if (length > 0) {
        transcript->ledger->events_read++;
        samples_add(&transcript->ledger->first, transcript->asked_ns, transcript->read_ns);
        take_text(transcript, text, length);
    }
    transcript->is_ended = true;
}

const char *transcript_verdict(Transcript *transcript) {
    if (!transcript->ledger->is_streamed)
        take_document(transcript);
    if (transcript->wrong != NULL)
        return transcript->wrong;
    if (transcript->words != transcript->ledger->words || transcript->partial_length != 0)
        return "words are missing, or there are too many";
    return transcript->is_ended ? NULL : "no terminal event";
}
