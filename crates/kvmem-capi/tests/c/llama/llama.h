/*
 * The functions of llama.cpp's llama.h that the example uses, with their types of 2026, for a test
 * without llama.cpp.
 */
#ifndef LLAMA_H
#define LLAMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t llama_pos;
typedef int32_t llama_token;
typedef int32_t llama_seq_id;
typedef struct llama_memory_i *llama_memory_t;
struct llama_model;
struct llama_context;

uint32_t llama_n_ctx(const struct llama_context *ctx);
const struct llama_model *llama_get_model(const struct llama_context *ctx);
llama_memory_t llama_get_memory(const struct llama_context *ctx);
int32_t llama_model_n_swa(const struct llama_model *model);
bool llama_model_is_recurrent(const struct llama_model *model);
bool llama_model_is_hybrid(const struct llama_model *model);
bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
llama_pos llama_memory_seq_pos_max(llama_memory_t mem, llama_seq_id seq_id);
size_t llama_state_seq_get_size(struct llama_context *ctx, llama_seq_id seq_id);
size_t llama_state_seq_get_data(struct llama_context *ctx, uint8_t *dst, size_t size,
                                llama_seq_id seq_id);
size_t llama_state_seq_set_data(struct llama_context *ctx, const uint8_t *src, size_t size,
                                llama_seq_id dest_seq_id);

#endif
