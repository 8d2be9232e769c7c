//! Settings and their aliases, without changes to the environment.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use kvmem::arena::{ArenaSettings, SettingError, SizeFault};

const SIZE: &str = "KVMEM_ARENA_POOL_SIZE";
const SIZE_ALIAS: &str = "MC_MMAP_ARENA_POOL_SIZE";
const OFF: &str = "KVMEM_DISABLE_ARENA";
const OFF_ALIAS: &str = "MC_DISABLE_MMAP_ARENA";

fn read(set: &[(&str, &str)]) -> Result<ArenaSettings, SettingError> {
    ArenaSettings::from_lookup(|name| {
        assert!([SIZE, SIZE_ALIAS, OFF, OFF_ALIAS].contains(&name), "unexpected variable {name}");
        set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into())
    })
}

#[test]
fn off_by_default() {
    assert_eq!(read(&[]), Ok(ArenaSettings::off()));
    assert_eq!(read(&[(OFF, "0")]), Ok(ArenaSettings::off()));
    assert_eq!(
        read(&[(SIZE, ""), (SIZE_ALIAS, "  "), (OFF, ""), (OFF_ALIAS, " ")]),
        Ok(ArenaSettings::off())
    );
    assert_eq!(ArenaSettings::default(), ArenaSettings::off());
}

#[test]
fn a_size_turns_it_on() {
    for name in [SIZE, SIZE_ALIAS] {
        assert_eq!(read(&[(name, "8g")]), Ok(ArenaSettings::pool(8 << 30)));
        assert_eq!(read(&[(name, " 1.5 GiB ")]), Ok(ArenaSettings::pool(3 << 29)));
    }
    // Powers of 1000 as in SI; powers of 1024 in Mooncake's variable.
    assert_eq!(read(&[(SIZE, "8gb")]), Ok(ArenaSettings::pool(8_000_000_000)));
    assert_eq!(read(&[(SIZE_ALIAS, "8gb")]), Ok(ArenaSettings::pool(8 << 30)));
    assert_eq!(read(&[(SIZE, "1M"), (SIZE_ALIAS, "not read")]), Ok(ArenaSettings::pool(1 << 20)));
    assert_eq!(read(&[(SIZE, ""), (SIZE_ALIAS, "2M")]), Ok(ArenaSettings::pool(2 << 20)));
}

#[test]
fn off_wins_over_any_size() {
    for name in [OFF, OFF_ALIAS] {
        for yes in ["1", "true", "YES", "On", " 1 "] {
            assert_eq!(
                read(&[(SIZE, "8g"), (name, yes)]),
                Ok(ArenaSettings::off()),
                "{name}={yes}"
            );
            assert_eq!(
                read(&[(SIZE, "nonsense"), (name, yes)]),
                Ok(ArenaSettings::off()),
                "{name}={yes}"
            );
        }
        for no in ["0", "false", "No", "OFF"] {
            assert_eq!(
                read(&[(SIZE, "8g"), (name, no)]),
                Ok(ArenaSettings::pool(8 << 30)),
                "{name}={no}"
            );
        }
    }
    assert_eq!(
        read(&[(SIZE, "8g"), (OFF, "0"), (OFF_ALIAS, "1")]),
        Ok(ArenaSettings::pool(8 << 30))
    );
}

#[test]
fn errors_name_the_variable() {
    for name in [SIZE, SIZE_ALIAS] {
        let error = read(&[(name, "8 gigs")]).unwrap_err();
        let fault = SizeFault::Unit { unit: "gigs".to_owned() };
        assert_eq!(error, SettingError::Size { variable: name, value: "8 gigs".to_owned(), fault });
        let text = error.to_string();
        assert!(
            [name, "8 gigs", "\"gigs\"", "8GiB", "unset"].iter().all(|part| text.contains(part)),
            "{text}"
        );
        for (value, part) in [
            ("0", "0 bytes"),
            ("9E", "more than"),
            ("-1", "negative"),
            ("x", "begin with a number"),
        ] {
            let text = read(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(part), "{text}");
        }
    }
    for name in [OFF, OFF_ALIAS] {
        let error = read(&[(name, "maybe"), (SIZE, "8g")]).unwrap_err();
        assert_eq!(error, SettingError::Switch { variable: name, value: "maybe".to_owned() });
        assert!(error.to_string().contains(name));
    }
}

#[test]
fn invalid_unicode_is_an_error() {
    for wrong in [SIZE, OFF_ALIAS] {
        let lookup = |name: &str| (name == wrong).then(|| OsString::from_vec(vec![b'1', 0xff]));
        let text = ArenaSettings::from_lookup(lookup).unwrap_err().to_string();
        assert!(text.contains(wrong) && text.contains("1\u{fffd}"), "{text}");
    }
}
