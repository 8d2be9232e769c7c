//! Handles that are valid, destroyed, closed, poisoned, forked, or any bits.

use super::*;

struct Thing;
object!(Thing as kvmem_cancel, String, |_| ForkScope::Copied);

fn why(error: CallError) -> BadHandle {
    match error {
        CallError::Handle { why, .. } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_handle_is_valid_until_it_is_destroyed() {
    // SAFETY: no other thread uses these objects.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    let table = Thing::table();
    let first = table.insert("first".into()).unwrap();
    let second = table.insert("second".into()).unwrap();
    assert_eq!(
        (
            table.get(&promise, first).unwrap().as_str(),
            table.get(&promise, second).unwrap().as_str()
        ),
        ("first", "second")
    );
    assert_eq!(table.take(&mut promise, first).unwrap(), "first");
    assert_eq!(why(table.get(&promise, first).unwrap_err()), BadHandle::Destroyed);
    assert_eq!(why(table.take(&mut promise, first).unwrap_err()), BadHandle::Destroyed);
    let third = table.insert("third".into()).unwrap();
    assert_ne!(first, third);
    assert_eq!(why(table.get(&promise, first).unwrap_err()), BadHandle::Destroyed);

    assert!(matches!(table.get(&promise, std::ptr::null()), Err(CallError::Null(_))));
    for bits in [
        1_usize,
        0xdead_beef,
        usize::MAX,
        second.addr() | POISONED as usize,
        second.addr() + (1 << 23),
    ] {
        assert_eq!(
            why(table.get(&promise, std::ptr::without_provenance(bits)).unwrap_err()),
            BadHandle::Unknown,
            "{bits:#x}"
        );
        assert!(table.take(&mut promise, std::ptr::without_provenance(bits)).is_err());
    }
    let other = second.addr() ^ ((Kind::kvmem_cancel.bits() ^ Kind::kvmem_region.bits()) as usize);
    assert_eq!(
        why(table.get(&promise, std::ptr::without_provenance(other)).unwrap_err()),
        BadHandle::WrongType("kvmem_region")
    );

    table.close(second).unwrap();
    assert!(
        table.get(&promise, second).is_err()
            && table.close(second).is_err()
            && table.take(&mut promise, second).is_err()
    );
    // SAFETY: `close` closed the object, and no other thread uses it.
    let closed = unsafe { table.get_even_closed(&promise, second) };
    assert_eq!(closed.unwrap(), "second");
    // SAFETY: see above.
    assert_eq!(unsafe { table.take_closed(&mut promise, second) }.unwrap(), "second");
    // SAFETY: see above.
    assert!(unsafe { table.take_closed(&mut promise, second) }.is_none());

    table.poison(third);
    assert!(matches!(table.get(&promise, third), Err(CallError::Poisoned(_))));
    assert_eq!(table.take(&mut promise, third).unwrap(), "third");
}

#[test]
fn destroying_a_forked_object_drops_only_its_handle() {
    struct Mine;
    object!(Mine as kvmem_cancel, std::sync::Arc<()>, |_| ForkScope::ParentOnly);
    static TABLE: HandleTable<Mine> = HandleTable::new();
    // SAFETY: no other thread uses these objects.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    let value = std::sync::Arc::new(());
    let handle = TABLE.insert(value.clone()).unwrap();
    let (poisoned, closed) =
        (TABLE.insert(value.clone()).unwrap(), TABLE.insert(value.clone()).unwrap());
    TABLE.poison(poisoned);
    TABLE.close(closed).unwrap();
    TABLE.mark_forked();
    for handle in [handle, poisoned, closed] {
        assert!(matches!(TABLE.get(&promise, handle), Err(CallError::Forked(_))));
        assert!(matches!(TABLE.take(&mut promise, handle), Err(CallError::Forked(_))));
        assert!(matches!(
            TABLE.exclusive(&mut promise, handle, |_| Ok(())),
            Err(CallError::Forked(_))
        ));
        // SAFETY: no function uses the object exclusively, and no other thread uses it.
        assert!(unsafe { TABLE.get_even_closed(&promise, handle) }.is_err());
        // SAFETY: see above.
        assert!(unsafe { TABLE.take_closed(&mut promise, handle) }.is_none());
        assert!(TABLE.destroy(&mut promise, handle).is_ok());
        assert_eq!(why(TABLE.destroy(&mut promise, handle).unwrap_err()), BadHandle::Destroyed);
    }
    // No value was dropped, and the slots can be reused.
    assert_eq!(std::sync::Arc::strong_count(&value), 4);
    let fresh = TABLE.insert(value).unwrap();
    assert!(
        TABLE.get(&promise, fresh).is_ok()
            && TABLE.drop_handle(&mut promise, fresh).is_err()
            && TABLE.destroy(&mut promise, fresh).is_ok()
    );
}

#[test]
fn threads_insert_and_take_at_once() {
    let make = || {
        // SAFETY: each thread uses only the objects that it made.
        let mut promise = unsafe { ObjectPromise::of_caller() };
        let handles: Vec<usize> =
            (0..500).map(|n| Thing::table().insert(n.to_string()).unwrap().addr()).collect();
        for (n, bits) in handles.iter().enumerate() {
            let handle = std::ptr::without_provenance::<Thing>(*bits);
            assert_eq!(Thing::table().get(&promise, handle).unwrap(), &n.to_string());
            assert_eq!(Thing::table().take(&mut promise, handle).unwrap(), n.to_string());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(make);
        }
    });
}
