//! The initial inputs of the fuzz target for slabs.

use super::STEPS;
use crate::random::Random;
use crate::slabs::codec::encode;
use crate::slabs::op::{How, SEATS, SlabConfig, SlabOp, Who};

/// Returns names and bytes of the inputs for slabs: traffic for each kind of allocator, and scenes
/// that are rare in any traffic.
pub fn slab() -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    let configs = [
        ("plain", SlabConfig::PLAIN),
        ("bounded", SlabConfig { max_cached_bytes: Some(100_000), ..SlabConfig::PLAIN }),
        ("uncached", SlabConfig { max_cached_bytes: Some(0), ..SlabConfig::PLAIN }),
        ("low-limit", SlabConfig { limit: 100, ..SlabConfig::PLAIN }),
        ("debug-blocks", SlabConfig { debug_blocks: true, ..SlabConfig::PLAIN }),
        (
            "always-malloc",
            SlabConfig { always_malloc: true, debug_blocks: true, ..SlabConfig::PLAIN },
        ),
    ];
    let mut random = Random::new(11);
    for (name, config) in configs {
        for round in 0..2 {
            let ops: Vec<SlabOp> = (0..STEPS).map(|_| draw_slab_op(&mut random)).collect();
            inputs.push((format!("{name}-{round}"), encode(&config, &ops)));
        }
    }
    let batch = |seat, n| SlabOp::Batch { seat, size: 24, n };
    let run = |seat| SlabOp::FreeBatch { seat, pick: 0, n: 255 };
    let quiet = [20, 20].map(|seconds| SlabOp::Tick { who: Who::Outsider, seconds });
    let scenes: [(&str, Vec<SlabOp>); 4] = [
        // Whole magazines move from one thread to another.
        (
            "crossing",
            [batch(0, 2000), run(1), run(1), run(1), run(1), batch(2, 1500), run(3)].to_vec(),
        ),
        (
            "silence",
            [batch(0, 1500), run(1), run(1), run(0)]
                .into_iter()
                .chain((0..SEATS).map(SlabOp::End))
                .chain(quiet)
                .collect(),
        ),
        (
            "trims",
            [
                batch(0, 900),
                run(1),
                SlabOp::Trim(Who::Seat(2)),
                run(0),
                SlabOp::Trim(Who::Outsider),
            ]
            .to_vec(),
        ),
        (
            "successors",
            [
                batch(0, 50),
                SlabOp::Replace(SlabConfig::PLAIN),
                batch(0, 50),
                run(1),
                SlabOp::End(0),
            ]
            .to_vec(),
        ),
    ];
    let scenes =
        scenes.map(|(name, ops)| (format!("scene-{name}"), encode(&SlabConfig::PLAIN, &ops)));
    inputs.extend(scenes);
    inputs
}

fn draw_slab_op(random: &mut Random) -> SlabOp {
    let seat = random.below(SEATS.into()) as u8;
    let pick = random.bits() as u16;
    let size = match random.below(4) {
        0 => 24,
        1 => 1 + random.below(600) as usize,
        2 => 1 + random.log_below(8192) as usize,
        _ => [16, 512, 8192, 8193][random.below(4) as usize],
    };
    let who = if random.once_in(3) { Who::Outsider } else { Who::Seat(seat) };
    match random.below(12) {
        0..3 => SlabOp::Alloc {
            seat,
            size,
            how: [How::Plain, How::Zeroed, How::Copy][random.below(3) as usize],
        },
        3 | 4 => SlabOp::Batch { seat, size, n: random.below(300) as u16 },
        5 => SlabOp::Free { seat, pick },
        6 | 7 => SlabOp::FreeBatch { seat, pick, n: random.bits() as u8 },
        8 => SlabOp::FreeChain { seat, pick, n: random.bits() as u8, link: random.bits() as u16 },
        9 => SlabOp::Trim(who),
        10 => SlabOp::Tick { who, seconds: 5 + random.below(30) as u8 },
        _ => SlabOp::End(seat),
    }
}
