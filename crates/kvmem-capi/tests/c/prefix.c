/*
 * Keys of prefixes: the vectors that the tests of all languages read. The environment variable
 * KVMEM_TEST_PREFIX_KEYS has the path of their file.
 */
#include "check.h"

enum { LINE = 1 << 16, TOKENS = 1024 };

/* Reads the bytes of a text in hexadecimal digits; "-" has none. */
static size_t unhex(const char *text, unsigned char *bytes) {
    size_t count = 0;
    for (; text[0] != '\0' && text[0] != '-'; text += 2, count++) {
        unsigned byte;
        CHECK(sscanf(text, "%2x", &byte) == 1);
        bytes[count] = (unsigned char) byte;
    }
    return count;
}

static uint64_t numbers(char *text, int32_t *out) {
    uint64_t count = 0;
    for (char *part = strtok(text, ","); part != NULL; part = strtok(NULL, ",")) {
        if (strcmp(part, "-") != 0)
            out[count++] = (int32_t) strtol(part, NULL, 10);
    }
    return count;
}

/* Compares the keys of a line. Returns their number. */
static uint64_t compare(char *line) {
    static unsigned char salt[LINE], wanted[LINE];
    static int32_t tokens[TOKENS];
    static kvmem_prefix_key keys[TOKENS];
    static char salt_text[LINE], token_text[LINE], key_text[LINE];
    unsigned long block;
    CHECK(sscanf(line, "%65535s %lu %65535s %65535s", salt_text, &block, token_text, key_text)
          == 4);
    size_t salt_bytes = unhex(salt_text, salt);
    uint64_t count = numbers(token_text, tokens), needed = 7, written = 7;
    OK(kvmem_prefix_keys(tokens, count, block, salt, salt_bytes, NULL, 0, &needed));
    CHECK(needed == count / block);
    OK(kvmem_prefix_keys(tokens, count, block, salt, salt_bytes, keys, TOKENS, &written));
    CHECK(written == needed);
    uint64_t at = 0;
    for (char *part = strtok(key_text, ","); part != NULL; part = strtok(NULL, ","), at++) {
        if (strcmp(part, "-") == 0)
            break;
        CHECK(at < written && unhex(part, wanted) == KVMEM_PREFIX_KEY_BYTES);
        CHECK(memcmp(wanted, keys[at].bytes, KVMEM_PREFIX_KEY_BYTES) == 0);
    }
    CHECK(at == written);
    return written;
}

static void wrong_arguments(void) {
    int32_t tokens[4] = {1, 2, 3, 4};
    kvmem_prefix_key keys[2];
    uint64_t count = 7;
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_prefix_keys(tokens, 4, 0, "salt", 4, keys, 2, &count));
    SAYS("block is 0");
    CHECK(count == 7);
    memset(keys, 'x', sizeof keys);
    IS(KVMEM_ERR_BUFFER_TOO_SMALL, kvmem_prefix_keys(tokens, 4, 1, "salt", 4, keys, 2, &count));
    CHECK(count == 4 && keys[0].bytes[0] == 'x');
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_prefix_keys(NULL, 4, 2, "salt", 4, keys, 2, &count));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_prefix_keys(tokens, 4, 2, NULL, 4, keys, 2, &count));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_prefix_keys(tokens, 4, 2, "salt", 4, NULL, 2, &count));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_prefix_keys(tokens, 4, 2, "salt", 4, keys, 2, NULL));
    OK(kvmem_prefix_keys(NULL, 0, 2, NULL, 0, NULL, 0, &count));
    CHECK(count == 0);
}

int main(void) {
    const char *path = getenv("KVMEM_TEST_PREFIX_KEYS");
    CHECK(path != NULL);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    static char line[LINE];
    uint64_t compared = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] != '#')
            compared += compare(line);
    }
    CHECK(fclose(file) == 0 && compared > 10);
    wrong_arguments();
    return 0;
}
