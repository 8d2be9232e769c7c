//! Fetches with more threads and steps than loom can check.

use shuttle::sync::Arc;
use shuttle::thread;

use super::tier_model::TierModel;
use crate::sync::models::random::check;

#[test]
fn look_ups_in_both_ways_beside_cancelled_ones() {
    check(|| {
        let model = Arc::new(TierModel::new());
        let ids = model.join(&[0]);
        assert!(model.fetches.submit(&ids));
        model.fetches.leave(&ids, false);
        let spawn = |run: fn(&TierModel)| {
            let model = model.clone();
            thread::spawn(move || run(&model))
        };
        let background = spawn(TierModel::run);
        let threads = [
            spawn(|model| model.get(&[1, 2, 3])),
            spawn(|model| model.get(&[3, 2, 1])),
            spawn(|model| model.get_in_background(&[2, 4])),
            spawn(|model| model.cancel(3)),
            spawn(|model| model.cancel(4)),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        model.fetches.close();
        background.join().unwrap();
        model.end(4);
    });
}
