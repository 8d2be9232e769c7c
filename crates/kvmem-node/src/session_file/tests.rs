//! The words of a session, as its client sees them.

use rustix::fs::fstat;

use super::{SessionFile, SessionView};
use crate::format::MAX_SESSIONS;

fn view(file: &SessionFile, session: u16) -> Option<SessionView> {
    let opened = file.open_locked(1).expect("there are descriptors");
    SessionView::attach(opened, session).expect("it can be mapped")
}

#[test]
fn a_client_sees_the_end_of_its_pins_and_of_its_session() {
    let file = SessionFile::create().expect("there are descriptors");
    assert!(view(&file, 3).is_none(), "there is no session");
    file.begin(3, 77);
    file.begin(4, 99);
    let seen = view(&file, 3).expect("it has begun");
    assert!(seen.has_session() && seen.has_pin_word(77) && !seen.has_pin_word(99));
    file.set_pin_word(3, 78);
    assert!(seen.has_session() && seen.has_pin_word(78) && !seen.has_pin_word(77));
    file.end(3);
    assert!(!seen.has_session() && !seen.has_pin_word(78));
    // The place has another session: it is not the client's.
    file.begin(3, 80);
    assert!(!seen.has_session() && view(&file, 3).is_some_and(|it| it.has_session()));
    assert_eq!((file.pin_word(3), file.pin_word(4), file.pin_word(5)), (80, 99, 0));
    assert!(view(&file, MAX_SESSIONS as u16 - 1).is_none());
    assert!(view(&file, MAX_SESSIONS as u16).is_none());
}

#[test]
fn other_users_cannot_open_the_file() {
    let file = SessionFile::create().expect("there are descriptors");
    let mode = fstat(file.share().expect("there are descriptors")).expect("it is open").st_mode;
    assert_eq!(mode & 0o777, 0o600);
}
