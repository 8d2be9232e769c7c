/*
 * Prefixes of llama.cpp in a node: the state of a sequence is stored by one process, and restored
 * by itself, by another one, or by one that starts later.
 *
 * For authors of servers: add this file and llama_prefix.c to a program that links libllama and
 * libkvmem. A server loads a slot before it decodes a prompt, and saves it when the slot is idle.
 */
#ifndef LLAMA_PREFIX_H
#define LLAMA_PREFIX_H

#include <stddef.h>
#include <stdint.h>

#include <kvmem.h>
#include <llama.h>

/* Where the states of a context are. */
typedef struct {
    /* A client of the node: connected with `verify`, a damaged state is a miss. */
    kvmem_node_client *node;
    /* All that the states depend on beside the tokens: a digest of the model's file, the types of
     * the KV cache, flash attention, adapters, the release of llama.cpp. */
    const void *salt;
    uint64_t salt_bytes;
    /* Tokens in a block: prompts share states at multiples of it. 256 is a good number. */
    uint64_t block;
} llama_prefix;

/*
 * Replaces a sequence by the longest stored prefix of a prompt. Returns its number of tokens, from
 * which decoding goes on; 0: none is stored, and the sequence is empty. The last token is never
 * among them, because its logits are needed.
 */
uint64_t llama_prefix_load(const llama_prefix *prefix, struct llama_context *context,
                           const llama_token *tokens, uint64_t count, llama_seq_id sequence);

/*
 * Stores the state of a sequence, whose tokens are the first ones of `tokens`. Returns their
 * number, or 0 if there is no complete block, or the node has no space.
 */
uint64_t llama_prefix_save(const llama_prefix *prefix, struct llama_context *context,
                           const llama_token *tokens, uint64_t count, llama_seq_id sequence);

#endif
