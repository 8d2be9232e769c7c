/*
 * A state is one value, under the key of all its tokens. Each complete block of its tokens has a
 * locator: a small value, under the key of the block, which names the state. A prompt finds the
 * locator of its last block that is stored, restores the state that it names, and removes the
 * tokens that are not in common. This is exact if the context keeps the keys and values of each
 * token. With recurrent layers or sliding windows a state cannot be cut, and serves prompts that
 * have all of its tokens.
 */
#include "llama_prefix.h"

#include <stdlib.h>
#include <string.h>

/* A key of the node: that of a prefix, and 's' for a state or 'l' for a locator. */
typedef struct {
    unsigned char bytes[KVMEM_PREFIX_KEY_BYTES + 1];
} node_key;

/* What a locator says of its state. */
typedef struct {
    node_key state;
    uint64_t tokens;
    uint64_t bytes;
} locator;

static node_key key_of(const kvmem_prefix_key *prefix, char kind) {
    node_key key;
    memcpy(key.bytes, prefix->bytes, KVMEM_PREFIX_KEY_BYTES);
    key.bytes[KVMEM_PREFIX_KEY_BYTES] = (unsigned char) kind;
    return key;
}

/* Calculates the key of the state of all these tokens. */
static int key_of_state(const llama_prefix *prefix, const llama_token *tokens, uint64_t count,
                        node_key *out) {
    kvmem_prefix_key whole;
    uint64_t written;
    if (kvmem_prefix_keys(tokens, count, count, prefix->salt, prefix->salt_bytes, &whole, 1,
                          &written) != KVMEM_OK)
        return 0;
    *out = key_of(&whole, 's');
    return 1;
}

/* Returns the keys of the complete blocks, or NULL. */
static kvmem_prefix_key *keys_of_blocks(const llama_prefix *prefix, const llama_token *tokens,
                                        uint64_t count, uint64_t *out_blocks) {
    uint64_t blocks = count / prefix->block;
    kvmem_prefix_key *keys = blocks == 0 ? NULL : malloc(blocks * sizeof *keys);
    if (keys != NULL &&
        kvmem_prefix_keys(tokens, count, prefix->block, prefix->salt, prefix->salt_bytes, keys,
                          blocks, out_blocks) != KVMEM_OK) {
        free(keys);
        keys = NULL;
    }
    return keys;
}

static int can_cut(const struct llama_context *context) {
    const struct llama_model *model = llama_get_model(context);
    return !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model) &&
           llama_model_n_swa(model) == 0;
}

static uint64_t tokens_in(struct llama_context *context, llama_seq_id sequence) {
    return (uint64_t) (llama_memory_seq_pos_max(llama_get_memory(context), sequence) + 1);
}

static void clear(struct llama_context *context, llama_seq_id sequence) {
    llama_memory_seq_rm(llama_get_memory(context), sequence, -1, -1);
}

/* Reads the locator of a block. Returns 0 if there is none. */
static int find_locator(const llama_prefix *prefix, const kvmem_prefix_key *block, locator *out) {
    node_key key = key_of(block, 'l');
    kvmem_kv_cache_key wanted = {key.bytes, sizeof key.bytes};
    kvmem_node_value value;
    kvmem_node_pins *pins;
    if (kvmem_node_client_acquire(prefix->node, &wanted, 1, &value, &pins) != KVMEM_OK)
        return 0;
    int is_found = value.is_present && value.bytes == sizeof *out;
    if (is_found)
        memcpy(out, value.data, sizeof *out);
    kvmem_node_pins_release(pins);
    return is_found;
}

/* Restores a state, and removes the tokens behind the common ones. Returns 0 if that fails. */
static int restore(const llama_prefix *prefix, struct llama_context *context, const locator *state,
                   uint64_t common, llama_seq_id sequence) {
    kvmem_kv_cache_key wanted = {state->state.bytes, sizeof state->state.bytes};
    kvmem_node_value value;
    kvmem_node_pins *pins;
    if (kvmem_node_client_acquire(prefix->node, &wanted, 1, &value, &pins) != KVMEM_OK)
        return 0;
    uint32_t is_valid = 0;
    size_t read = 0;
    if (value.is_present && value.bytes >= state->bytes) {
        /* Straight from the memory of the node. */
        read = llama_state_seq_set_data(context, value.data, state->bytes, sequence);
        /* The bytes were those of the state if it is still pinned. */
        kvmem_node_pins_is_valid(pins, &is_valid);
    }
    kvmem_node_pins_release(pins);
    if (read == 0 || !is_valid)
        return 0;
    if (tokens_in(context, sequence) > common)
        llama_memory_seq_rm(llama_get_memory(context), sequence, (llama_pos) common, -1);
    return tokens_in(context, sequence) == common;
}

uint64_t llama_prefix_load(const llama_prefix *prefix, struct llama_context *context,
                           const llama_token *tokens, uint64_t count, llama_seq_id sequence) {
    uint64_t usable = count == 0 ? 0 : count - 1, blocks = 0, restored = 0;
    kvmem_prefix_key *keys = keys_of_blocks(prefix, tokens, usable, &blocks);
    clear(context, sequence);
    for (; keys != NULL && blocks > 0 && restored == 0; blocks--) {
        locator state;
        if (!find_locator(prefix, &keys[blocks - 1], &state) ||
            state.tokens > llama_n_ctx(context))
            continue;
        uint64_t common = blocks * prefix->block;
        node_key key;
        /* The prompt may have the tokens behind the last block, too. */
        if (state.tokens <= usable && key_of_state(prefix, tokens, state.tokens, &key) &&
            memcmp(&key, &state.state, sizeof key) == 0)
            common = state.tokens;
        if (common != state.tokens && !can_cut(context))
            continue;
        if (restore(prefix, context, &state, common, sequence))
            restored = common;
        else
            clear(context, sequence);
    }
    free(keys);
    return restored;
}

/* Writes a state to the node. Returns its length, or 0. */
static uint64_t write_state(const llama_prefix *prefix, struct llama_context *context,
                            const node_key *key, llama_seq_id sequence) {
    uint64_t size = llama_state_seq_get_size(context, sequence);
    kvmem_node_reserved reserved;
    if (size == 0 || kvmem_node_client_reserve(prefix->node, &size, 1, &reserved) != KVMEM_OK)
        return 0;
    /* Straight into the memory of the node. */
    uint64_t written = llama_state_seq_get_data(context, reserved.data, size, sequence);
    kvmem_node_commit commit = {
        .reservation = reserved.reservation, .key = key->bytes, .key_bytes = sizeof key->bytes};
    if (written == 0 || kvmem_node_client_commit(prefix->node, &commit, 1) != KVMEM_OK) {
        kvmem_node_reservation_release(reserved.reservation);
        return 0;
    }
    return written;
}

uint64_t llama_prefix_save(const llama_prefix *prefix, struct llama_context *context,
                           const llama_token *tokens, uint64_t count, llama_seq_id sequence) {
    uint64_t present = tokens_in(context, sequence), blocks = 0;
    locator state = {.tokens = present};
    if (present > count || present < prefix->block ||
        !key_of_state(prefix, tokens, present, &state.state))
        return 0;
    kvmem_prefix_key *keys = keys_of_blocks(prefix, tokens, present, &blocks);
    if (keys != NULL)
        state.bytes = write_state(prefix, context, &state.state, sequence);
    if (state.bytes != 0) {
        /* Without cuts, locators of earlier blocks stay with shorter states. */
        for (uint64_t at = can_cut(context) ? 0 : blocks - 1; at < blocks; at++) {
            node_key key = key_of(&keys[at], 'l');
            kvmem_node_client_insert(prefix->node, key.bytes, sizeof key.bytes, &state,
                                     sizeof state, NULL);
        }
    }
    free(keys);
    return state.bytes == 0 ? 0 : present;
}
