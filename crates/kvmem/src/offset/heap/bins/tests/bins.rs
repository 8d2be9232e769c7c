use super::super::bins::Bins;
use super::super::holes::Hole;

#[test]
fn the_largest_is_exact_through_ties_and_removals() {
    let mut bins = Bins::new();
    assert_eq!(bins.largest(), 0);
    let a = bins.insert(Hole::new(0, 1000, 0));
    let b = bins.insert(Hole::new(2000, 1000, 0));
    let c = bins.insert(Hole::new(4000, 1001, 0));
    assert_eq!(bins.largest(), 1001);
    bins.remove(c);
    assert_eq!(bins.largest(), 1000);
    bins.remove(a);
    assert_eq!(bins.largest(), 1000);
    bins.shrink(b, 2000, 7);
    assert_eq!(bins.largest(), 7);
    bins.grow(b, 2000, 900);
    assert_eq!(bins.largest(), 900);
    bins.shrink(b, 2000, 7);
    assert_eq!(bins.largest(), 7);
    bins.remove(b);
    assert_eq!(bins.largest(), 0);
    assert_eq!(bins.check(), Ok(0));
}
