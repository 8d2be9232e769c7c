//! Bytes written over the life of a file.

use kvmem_testkit::random::Random;
use kvmem_tier::{DiskTier, DiskTierOptions, TierStats};

use crate::simulated::{Disk, kill};

fn open(disk: &Disk) -> DiskTier<Disk> {
    let options = DiskTierOptions {
        max_entries: Some(300),
        journal_bytes: Some(16 * 4096),
        ..DiskTierOptions::default()
    };
    DiskTier::on(disk.clone(), &options).unwrap().0
}

/// Bytes written since the tier was opened.
fn written(stats: &TierStats) -> u64 {
    stats.written_bytes + stats.metadata_bytes
}

/// The superblock has the bytes up to the checkpoint, and the journal those after it: nothing
/// counts twice, and only what an unfinished checkpoint wrote is left out.
#[test]
fn what_is_written_adds_up_over_the_lives_of_a_file() {
    for seed in 0..20 {
        let disk = Disk::new(4 << 20, seed);
        let mut random = Random::new(seed);
        let (mut sum, mut unfinished) = (0, 0);
        for life in 0..5 {
            let tier = open(&disk);
            let opened = tier.stats();
            for _ in 0..random.below(60) {
                let values: Vec<Vec<u8>> = (0..1 + random.below(4))
                    .map(|_| vec![7; random.below(20_000) as usize])
                    .collect();
                let keys: Vec<[u8; 8]> =
                    values.iter().map(|_| random.below(100).to_le_bytes()).collect();
                let batch: Vec<(&[u8], &[u8])> =
                    keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])).collect();
                assert!(tier.store(&batch).iter().all(Result::is_ok));
                if random.once_in(40) {
                    tier.checkpoint().unwrap();
                }
            }
            let stats = tier.stats();
            let since = written(&stats) - written(&opened);
            assert_eq!(stats.lifetime_bytes, opened.lifetime_bytes + since, "{seed}, {life}");
            // The whole checkpoint has at most 13 blocks, and the other journal 16.
            assert!(opened.lifetime_bytes <= sum + written(&opened), "{seed}, {life}");
            assert!(opened.lifetime_bytes + 29 * 4096 >= sum + written(&opened), "{seed}, {life}");
            unfinished += u32::from(opened.lifetime_bytes < sum + written(&opened));
            sum = stats.lifetime_bytes;
            assert_eq!(stats.bytes_per_day, sum, "the first day counts whole");
            // A checkpoint at the end would count beyond these figures.
            kill(tier, &disk);
        }
        assert!(unfinished < 5, "{seed}: most lives leave nothing out");
    }
}
