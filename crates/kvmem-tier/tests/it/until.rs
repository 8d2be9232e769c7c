//! Verification that its caller can end.

use std::ops::ControlFlow;

use kvmem_tier::device::MemoryDevice;
use kvmem_tier::{Damage, DiskTier, DiskTierOptions, inspect, verify, verify_until};

#[test]
fn a_verification_ends_when_its_caller_says_so() {
    let value = vec![7; 40 << 20];
    let (tier, _) =
        DiskTier::on(MemoryDevice::new(240 << 20), &DiskTierOptions::default()).expect("it is new");
    for key in [b"1", b"2", b"3", b"4", b"5"] {
        tier.store(&[(key, &value)]).remove(0).expect("there is room");
    }
    let mut bytes = tier.device().bytes();
    drop(tier);
    let contents = |bytes: &[u8]| {
        let device = MemoryDevice::holding(bytes.to_vec());
        let contents = inspect(&device).expect("it can be read").contents.expect("it is a tier");
        (device, contents)
    };
    let (device, whole) = contents(&bytes);
    let mut read_before = Vec::new();
    let go_on = |read| {
        read_before.push(read);
        ControlFlow::Continue(())
    };
    let damaged =
        verify_until(&device, whole.clone(), None, go_on).unwrap().expect("nothing ends it");
    assert!(damaged.is_empty());
    assert_eq!(read_before, [0, 4 * (40 << 20), 5 * (40 << 20)]);

    // The last value, in another part than the first four.
    let last = whole.entries.last().expect("there are five").extents[0].start;
    let at = whole.superblock.layout.data.start + u64::from(last) * 4096;
    bytes[at as usize] ^= 1;
    drop((device, whole));
    let (device, whole) = contents(&bytes);
    let until = |end| {
        let go_on =
            |read| if read >= end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        verify_until(&device, whole.clone(), None, go_on).unwrap()
    };
    assert!(until(0).is_none() && until(1).is_none());
    assert!(until(5 * (40 << 20)).is_none(), "it can end at the end, too");
    let damaged = until(u64::MAX).expect("nothing ends it");
    let all = verify(&device, &whole, |_| {});
    assert_eq!((damaged.len(), all.len()), (1, 1));
    assert_eq!(damaged[0].entry, all[0].entry);
    assert!(matches!(damaged[0].damage, Damage::Checksum));
}
