//! Texts of traces, as programs that record them write them.

use std::fmt::Write as _;

use crate::random::Random;

/// Returns conversations in Mooncake's format: each request repeats a prompt and adds to it.
#[must_use]
pub fn conversations(seed: u64, requests: u64) -> String {
    let mut random = Random::new(seed);
    let mut prompts: Vec<Vec<u64>> = Vec::new();
    let mut next = 1000;
    let mut text = String::new();
    for number in 0..requests {
        if prompts.len() < 5 || random.once_in(3) {
            let system = 10 * random.below(4);
            prompts.push((system..system + 1 + random.below(3)).collect());
        }
        let which = prompts.len() - 1 - random.log_below(prompts.len() as u64) as usize;
        let prompt = &mut prompts[which];
        for _ in 0..1 + random.below(10) {
            prompt.push(next);
            next += 1;
        }
        let tokens = 512 * prompt.len();
        writeln!(
            text,
            "{{\"timestamp\": {}, \"input_length\": {tokens}, \"output_length\": 9, \
             \"hash_ids\": {prompt:?}}}",
            100 * number
        )
        .expect("a text grows");
    }
    text
}

/// Returns a session of kv-cache-tester with blocks of 64 tokens, and a sub-agent with the same
/// system prompt.
#[must_use]
pub fn session(seed: u64, requests: u64) -> String {
    let mut random = Random::new(seed);
    let mut prompt: Vec<u64> = (1..20).collect();
    let mut next = 100;
    let mut entries = Vec::new();
    for number in 0..requests {
        for _ in 0..1 + random.below(12) {
            prompt.push(next);
            next += 1;
        }
        let request = |t: u64, ids: &[u64]| {
            format!(
                "{{\"t\": {t}.5, \"type\": \"s\", \"in\": {}, \"out\": 7, \"hash_ids\": {ids:?}, \
                 \"api_time\": 1.0}}",
                64 * ids.len()
            )
        };
        entries.push(request(10 * number, &prompt));
        if random.once_in(3) {
            let begin = prompt[..19].iter().copied();
            let own: Vec<u64> = begin.chain(next..next + 30).collect();
            next += 30;
            let inner = [request(10 * number + 2, &own[..40]), request(10 * number + 5, &own)];
            entries.push(format!(
                "{{\"t\": {}, \"type\": \"subagent\", \"requests\": [{}]}}",
                10 * number + 1,
                inner.join(",\n")
            ));
        }
    }
    let entries = entries.join(",\n");
    format!("{{\"id\": \"{seed}\", \"block_size\": 64, \"requests\": [{entries}]}}")
}
