/*
 * The example for llama.cpp, with a stand-in for its library: the state of a sequence is a number
 * for each token, which depends on all tokens up to it. The environment variable KVMEM_TEST_NODE
 * has the path of a node's socket.
 */
#include "../check.h"

#include "../../../examples/llama_prefix.h"

enum { LENGTH = 4096, BLOCK = 16 };

struct llama_memory_i {
    uint64_t cells[LENGTH];
    llama_pos count;
};

struct llama_model {
    int32_t window;
};

struct llama_context {
    struct llama_model model;
    struct llama_memory_i memory;
    uint32_t length;
    int rejects;
};

uint32_t llama_n_ctx(const struct llama_context *ctx) { return ctx->length; }
const struct llama_model *llama_get_model(const struct llama_context *ctx) { return &ctx->model; }
llama_memory_t llama_get_memory(const struct llama_context *ctx) {
    return (llama_memory_t) (uintptr_t) &ctx->memory;
}
int32_t llama_model_n_swa(const struct llama_model *model) { return model->window; }
bool llama_model_is_recurrent(const struct llama_model *model) { return model == NULL; }
bool llama_model_is_hybrid(const struct llama_model *model) { return model == NULL; }

bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    CHECK(seq_id == 0 && p1 == -1);
    p0 = p0 < 0 ? 0 : p0;
    mem->count = mem->count < p0 ? mem->count : p0;
    return true;
}

llama_pos llama_memory_seq_pos_max(llama_memory_t mem, llama_seq_id seq_id) {
    CHECK(seq_id == 0);
    return mem->count - 1;
}

size_t llama_state_seq_get_size(struct llama_context *ctx, llama_seq_id seq_id) {
    CHECK(seq_id == 0);
    /* More than it needs, as llama.cpp may say. */
    return (size_t) ctx->memory.count * sizeof(uint64_t) + 100;
}

size_t llama_state_seq_get_data(struct llama_context *ctx, uint8_t *dst, size_t size,
                                llama_seq_id seq_id) {
    size_t bytes = (size_t) ctx->memory.count * sizeof(uint64_t);
    CHECK(seq_id == 0 && size >= bytes);
    memcpy(dst, ctx->memory.cells, bytes);
    return bytes;
}

size_t llama_state_seq_set_data(struct llama_context *ctx, const uint8_t *src, size_t size,
                                llama_seq_id dest_seq_id) {
    CHECK(dest_seq_id == 0 && size % sizeof(uint64_t) == 0);
    if (ctx->rejects || size / sizeof(uint64_t) > ctx->length)
        return 0;
    memcpy(ctx->memory.cells, src, size);
    ctx->memory.count = (llama_pos) (size / sizeof(uint64_t));
    return size;
}

/* Computes the cells of tokens from the first one that is missing on. */
static void decode(struct llama_context *ctx, const llama_token *tokens, llama_pos count) {
    for (llama_pos at = ctx->memory.count; at < count; at++) {
        uint64_t before = at == 0 ? 7 : ctx->memory.cells[at - 1];
        ctx->memory.cells[at] = before * 31 + (uint64_t) tokens[at];
    }
    ctx->memory.count = count;
}

static struct llama_context *context(int32_t window, uint32_t length) {
    struct llama_context *made = calloc(1, sizeof *made);
    CHECK(made != NULL);
    made->model.window = window;
    made->length = length;
    return made;
}

/* Loads a prompt, computes the rest, and compares the cells with computing all of them. */
static uint64_t warm(const llama_prefix *prefix, struct llama_context *ctx,
                     const llama_token *tokens, llama_pos count) {
    struct llama_context *cold = context(0, LENGTH);
    decode(cold, tokens, count);
    uint64_t restored = llama_prefix_load(prefix, ctx, tokens, (uint64_t) count, 0);
    CHECK((uint64_t) ctx->memory.count == restored && restored < (uint64_t) count);
    decode(ctx, tokens, count);
    CHECK(memcmp(cold->memory.cells, ctx->memory.cells, (size_t) count * sizeof(uint64_t)) == 0);
    free(cold);
    return restored;
}

static void tokens_of(llama_token *tokens, int count, int seed) {
    for (int at = 0; at < count; at++)
        tokens[at] = (at * 7919 + seed * 104729) % 32000;
}

int main(void) {
    kvmem_node_client_options options;
    OK(kvmem_node_client_options_init(&options, sizeof options));
    options.verify = 1;
    kvmem_node_client *node;
    OK(kvmem_node_client_connect(getenv("KVMEM_TEST_NODE"), &options, &node));
    llama_prefix prefix = {node, "model, F16", 10, BLOCK};
    struct llama_context *ctx = context(0, LENGTH);
    static llama_token first[2000], other[2000];
    tokens_of(first, 2000, 1);
    memcpy(other, first, sizeof other);
    tokens_of(other + 100, 1000, 2);

    CHECK(llama_prefix_save(&prefix, ctx, first, 1000, 0) == 0);
    CHECK(warm(&prefix, ctx, first, 1000) == 0);
    CHECK(llama_prefix_save(&prefix, ctx, first, 999, 0) == 0);
    CHECK(llama_prefix_save(&prefix, ctx, first, 1000, 0) == 1000);
    /* All but the last token, all tokens, a part of them, and none. */
    CHECK(warm(&prefix, ctx, first, 1000) == 999 / BLOCK * BLOCK);
    CHECK(warm(&prefix, ctx, first, 1500) == 1000);
    CHECK(warm(&prefix, ctx, first, BLOCK + 1) == BLOCK);
    CHECK(warm(&prefix, ctx, first, BLOCK) == 0);
    CHECK(warm(&prefix, ctx, other, 500) == 100 / BLOCK * BLOCK);
    CHECK(warm(&prefix, ctx, other + 100, 500) == 0);
    CHECK(llama_prefix_load(&prefix, ctx, first, 0, 0) == 0);
    /* Another salt, and a context that is too short or rejects the state. */
    llama_prefix others = {node, "model, Q8_0", 11, BLOCK};
    CHECK(warm(&others, ctx, first, 1000) == 0);
    struct llama_context *small = context(0, 500);
    CHECK(warm(&prefix, small, first, 400) == 0);
    ctx->rejects = 1;
    CHECK(warm(&prefix, ctx, first, 1000) == 0);
    ctx->rejects = 0;
    /* A window: a state is used as a whole. */
    llama_prefix windows = {node, "window", 6, BLOCK};
    struct llama_context *window = context(100, LENGTH);
    CHECK(warm(&windows, window, first, 1000) == 0);
    CHECK(llama_prefix_save(&windows, window, first, 1000, 0) == 1000);
    CHECK(warm(&windows, window, first, 1000) == 0);
    CHECK(warm(&windows, window, first, 1001) == 1000);
    /* A node that is gone. */
    kvmem_node_stats stats;
    OK(kvmem_node_client_get_stats(node, &stats));
    CHECK(stats.reservations == 0);
    free(ctx);
    free(small);
    free(window);
    OK(kvmem_node_client_destroy(node));
    return 0;
}
