//! Calls every declared function in a forked child of a process whose threads allocate. The program
//! is generated from the headers, so no function is left out.

use std::fmt::Write;
use std::process::Command;

use kvmem_node::ServerOptions;

use crate::support::header;
use crate::support::node_server::ServedNode;
use crate::support::program::{MAKING, beginning, call};
use crate::support::{compile, scratch, succeed};

/// Objects that a child has a copy of. All others belong to the parent.
const COPIED: [&str; 3] = ["kvmem_offset_allocator", "kvmem_slab_allocator", "kvmem_cancel"];

/// The work of the parent's threads, and of a child with its own objects.
const AROUND: &str = r#"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 120 };

static atomic_int stop;
static kvmem_offset_allocator *cached;
static kvmem_block block;

/* Asks each allocator that threads share, and makes and destroys some. */
static void some(void) {
    for (uint64_t size = 1; size < 40; size++) {
        kvmem_allocation plain, quick;
        OK(kvmem_offset_allocator_allocate(live_kvmem_offset_allocator, size * 16, &plain));
        OK(kvmem_offset_allocator_allocate(cached, size * 16, &quick));
        void *slice;
        OK(kvmem_slab_allocator_allocate(live_kvmem_slab_allocator, size * 64, &slice));
        memset(slice, 1, size * 64);
        OK(kvmem_slab_allocator_free(live_kvmem_slab_allocator, slice, size * 64));
        OK(kvmem_offset_allocator_free(cached, &quick));
        OK(kvmem_offset_allocator_free(live_kvmem_offset_allocator, &plain));
    }
    kvmem_offset_allocator *own;
    OK(kvmem_offset_allocator_create(1 << 20, NULL, &own));
    OK(kvmem_offset_allocator_destroy(own));
    kvmem_cancel *cancel;
    OK(kvmem_cancel_create(&cancel));
    OK(kvmem_cancel_destroy(cancel));
}

static void *work(void *argument) {
    (void) argument;
    while (!stop) {
        some();
        kvmem_block mine;
        if (kvmem_pool_allocate(live_kvmem_pool, 100, &mine) == KVMEM_OK) {
            memset(mine.data, 1, mine.bytes);
            OK(kvmem_block_free(&mine));
        }
        OK(kvmem_kv_cache_insert(live_kvmem_kv_cache, "key", 3, "value", 5, NULL));
    }
    return NULL;
}

/* Objects that a child makes itself are as anywhere. */
static void own(void) {
    kvmem_region *region;
    OK(kvmem_region_map(65536, NULL, &region));
    kvmem_bump_arena *arena;
    OK(kvmem_bump_arena_create(region, &arena));
    void *data;
    OK(kvmem_bump_arena_allocate(arena, 1000, 8, &data));
    memset(data, 1, 1000);
    OK(kvmem_bump_arena_destroy(arena));
    OK(kvmem_region_destroy(region));
    kvmem_pool *pool;
    OK(kvmem_pool_create(65536, &shared, &pool));
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, NULL, &cache));
    OK(kvmem_kv_cache_insert(cache, "key", 3, "value", 5, NULL));
    kvmem_kv_cache_value value;
    OK(kvmem_kv_cache_get(cache, "key", 3, &value));
    CHECK(memcmp(value.data, "value", 5) == 0);
    OK(kvmem_kv_cache_pin_release(value.pin));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
}

/* Memory that a child inherits, because the region says so, is used there as a copy. */
static kvmem_region *kept;
static kvmem_bump_arena *kept_arena;
static kvmem_slab_allocator *on_region, *on_kept;

static void make_kept(void) {
    kvmem_region_options options;
    OK(kvmem_region_options_init(&options, sizeof options));
    kvmem_slab_allocator_options slab_options;
    OK(kvmem_slab_allocator_options_init(&slab_options, sizeof slab_options));
    OK(kvmem_region_map(1 << 20, &options, &slab_options.region));
    OK(kvmem_slab_allocator_create(&slab_options, &on_region));
    options.dont_fork = 0;
    OK(kvmem_region_map(1 << 20, &options, &slab_options.region));
    OK(kvmem_slab_allocator_create(&slab_options, &on_kept));
    OK(kvmem_region_map(1 << 20, &options, &kept));
    OK(kvmem_bump_arena_create(kept, &kept_arena));
}

static void use_kept(void) {
    kvmem_region_info info;
    OK(kvmem_region_get_info(kept, &info));
    memset(info.data, 7, 65536);
    void *data;
    OK(kvmem_bump_arena_allocate(kept_arena, 100, 8, &data));
    memset(data, 1, 100);
    OK(kvmem_slab_allocator_allocate(on_kept, 100, &data));
    memset(data, 1, 100);
    OK(kvmem_slab_allocator_free(on_kept, data, 100));
    IS(KVMEM_ERR_FORKED, kvmem_slab_allocator_allocate(on_region, 100, &data));
    IS(KVMEM_ERR_FORKED, kvmem_slab_allocator_allocate_zeroed(on_region, 100, &data));
    CHECK(strstr(kvmem_last_error(), "kvmem_slab_allocator") != NULL);
    OK(kvmem_slab_allocator_destroy(on_region));
    OK(kvmem_slab_allocator_destroy(on_kept));
    OK(kvmem_bump_arena_destroy(kept_arena));
    OK(kvmem_region_destroy(kept));
}

static void use_block(void) {
    kvmem_key key;
    kvmem_block_ref reference;
    uint64_t freed = 7;
    IS(KVMEM_ERR_FORKED, kvmem_block_key(&block, "simulated:0", &key));
    IS(KVMEM_ERR_FORKED, kvmem_block_reference(&block, &reference));
    IS(KVMEM_ERR_FORKED, kvmem_block_shrink(&block, 1));
    IS(KVMEM_ERR_FORKED, kvmem_block_extend(&block, 1000));
    IS(KVMEM_ERR_FORKED, kvmem_block_quarantine(&block, "it is bad"));
    IS(KVMEM_ERR_FORKED, kvmem_block_free_batch(&block, 1, &freed));
    CHECK(freed == 0);
    IS(KVMEM_ERR_FORKED, kvmem_block_free(&block));
    CHECK(strstr(kvmem_last_error(), "before the process was forked") != NULL);
}

static void inherited(void);

/* An alarm ends a child that waits for ever, and that is no good end. */
static void in_child(void) {
    alarm(300);
    some();
    use_block();
    use_kept();
    own();
    inherited();
    _exit(0);
}

int main(void) {
    make();
    make_kept();
    kvmem_offset_allocator_options options;
    OK(kvmem_offset_allocator_options_init(&options, sizeof options));
    options.magazines = 1;
    OK(kvmem_offset_allocator_create(1 << 20, &options, &cached));
    OK(kvmem_pool_allocate(live_kvmem_pool, 100, &block));
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            in_child();
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0)
            fprintf(stderr, "child %d: status %#x\n", i, (unsigned) status);
        CHECK(status == 0);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    /* The parent's objects are as they were. */
    OK(kvmem_block_free(&block));
    OK(kvmem_pool_check(live_kvmem_pool));
    OK(kvmem_offset_allocator_check(live_kvmem_offset_allocator));
    OK(kvmem_offset_allocator_check(cached));
    uint64_t keys;
    OK(kvmem_registrars_live_keys(live_kvmem_registrars, 0, &keys));
    CHECK(keys != 0);
    return 0;
}
"#;

#[test]
fn every_function_answers_in_a_child() {
    let (functions, objects) = header::read();
    let mut program = beginning();
    program.push_str(AROUND);
    program.push_str("\nstatic void inherited(void) {\n");
    let ends: Vec<&str> = MAKING.iter().map(|making| making.2).collect();
    let mut forked_calls = 0;
    for function in &functions {
        // The destroying functions come last. `kvmem_gslice_*` abort the process if there is no
        // memory.
        if function.returns != "kvmem_status" || ends.contains(&function.name.as_str()) {
            continue;
        }
        let call = call(function, &objects, usize::MAX, "");
        writeln!(program, "    memset(&place, 0, sizeof place);").unwrap();
        let handles: Vec<&str> =
            function.parameters.iter().filter_map(|parameter| parameter.object(&objects)).collect();
        let first = handles.first().filter(|handle| !COPIED.contains(*handle));
        if first.is_some() {
            writeln!(program, "    IS(KVMEM_ERR_FORKED, {call});").unwrap();
            forked_calls += 1;
        } else {
            writeln!(program, "    (void) {call};").unwrap();
        }
    }
    assert!(forked_calls > 60, "{forked_calls} calls must fail in a child");
    for (object, _, end) in MAKING.iter().rev() {
        writeln!(
            program,
            "    OK({end}(live_{object}));\n    IS(KVMEM_ERR_BAD_HANDLE, {end}(live_{object}));"
        )
        .unwrap();
    }
    program.push_str("}\n");
    let source = scratch("programs").join("forks.c");
    std::fs::write(&source, program).expect("the target folder can be written");
    let node = ServedNode::start(ServerOptions::default());
    succeed(node.tell(&mut Command::new(compile(&source, "forks", &[]))));
}
