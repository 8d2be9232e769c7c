//! *ZMTP*: as much of ZeroMQ's protocol, version 3.0, as a publisher speaks.
//!
//! Both sides send a greeting of 64 bytes and one command `READY`, which names the type of the
//! sender's socket; then messages, which are frames, the last one without the flag [`MORE`]. The
//! mechanism is `NULL`: no authentication. A peer says little, so a frame of more than
//! [`MAX_FRAME`] bytes ends its connection.
//!
//! Source: <https://rfc.zeromq.org/spec/23/>, and for commands of 3.1 that some send in any case
//! <https://rfc.zeromq.org/spec/37/>.

use std::ops::Range;

/// Length of a greeting.
const GREETING: usize = 64;
/// Length of the part of a greeting that says which version the sender speaks.
const SIGNED: usize = 11;
/// The most bytes of a frame from a peer.
const MAX_FRAME: usize = 1024;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A peer violates the protocol, or speaks another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The type of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketType {
    Pub,
    Router,
}

/// Returns the greeting.
pub(super) fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    (bytes[0], bytes[9], bytes[10]) = (0xFF, 0x7F, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Adds a frame of a message to what is sent.
pub(super) fn push_frame(out: &mut Vec<u8>, body: &[u8], more: bool) {
    push(out, body, if more { MORE } else { 0 });
}

fn push(out: &mut Vec<u8>, body: &[u8], flags: u8) {
    if let Ok(len) = u8::try_from(body.len()) {
        out.extend([flags, len]);
    } else {
        out.push(flags | LONG);
        out.extend((body.len() as u64).to_be_bytes());
    }
    out.extend(body);
}

/// Adds the command that names the type of our socket.
pub(super) fn push_ready(out: &mut Vec<u8>, kind: SocketType) {
    let kind: &[u8] = match kind {
        SocketType::Pub => b"PUB",
        SocketType::Router => b"ROUTER",
    };
    let len = (kind.len() as u32).to_be_bytes();
    push(out, &[&b"\x05READY\x0BSocket-Type"[..], &len, kind].concat(), COMMAND);
}

/// Adds the answer to a `PING` with this context.
pub(super) fn push_pong(out: &mut Vec<u8>, context: &[u8]) {
    push(out, &[&b"\x04PONG"[..], context].concat(), COMMAND);
}

/// A frame or a command of a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said<'a> {
    /// The type of our socket that the peer's wants. It comes first, and once.
    Ready(SocketType),
    /// A frame of a message.
    Frame {
        body: &'a [u8],
        more: bool,
    },
    Subscribe(&'a [u8]),
    Cancel(&'a [u8]),
    /// The context of a `PING`.
    Ping(&'a [u8]),
    /// Another command.
    Other,
}

/// The bytes of a peer that are not understood yet.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bytes: Vec<u8>,
    at: usize,
    has_greeted: bool,
    is_ready: bool,
}

impl Reader {
    /// Adds bytes that have come.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.at));
        self.bytes.extend(bytes);
    }

    /// Returns whether the peer has said what it is.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Returns what the peer says next; `None`: more bytes must come first.
    pub(super) fn next(&mut self) -> Result<Option<Said<'_>>, Malformed> {
        if !self.has_greeted {
            let bytes = &self.bytes[self.at..];
            let signed = &bytes[..bytes.len().min(SIGNED)];
            let is_other = |(at, byte): (usize, &u8)| match at {
                0 => *byte != 0xFF,
                9 => byte & 1 == 0,
                // Before version 3 nothing names the mechanism.
                10 => *byte < 3,
                _ => false,
            };
            if signed.iter().enumerate().any(is_other) {
                return Err(Malformed);
            }
            let Some(greeting) = bytes.get(..GREETING) else { return Ok(None) };
            if greeting[12..32] != *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" {
                return Err(Malformed);
            }
            (self.has_greeted, self.at) = (true, self.at + GREETING);
        }
        let Some((flags, body)) = self.frame()? else { return Ok(None) };
        let body = &self.bytes[body];
        let said = match flags & COMMAND {
            0 => Said::Frame { body, more: flags & MORE != 0 },
            _ => command(body)?,
        };
        // A peer is what it says first, and says it once.
        if matches!(said, Said::Ready(_)) == self.is_ready {
            return Err(Malformed);
        }
        self.is_ready = true;
        Ok(Some(said))
    }

    /// Takes a frame: its flags, and where its body is.
    fn frame(&mut self) -> Result<Option<(u8, Range<usize>)>, Malformed> {
        let bytes = &self.bytes[self.at..];
        let Some(flags) = bytes.first().copied() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & COMMAND != 0 && flags & MORE != 0 {
            return Err(Malformed);
        }
        let (len, head) = if flags & LONG == 0 {
            let Some(len) = bytes.get(1) else { return Ok(None) };
            (u64::from(*len), 2)
        } else {
            let Some(len) = bytes.get(1..).and_then(|it| it.first_chunk()) else { return Ok(None) };
            (u64::from_be_bytes(*len), 9)
        };
        if len > MAX_FRAME as u64 {
            return Err(Malformed);
        }
        let end = head + len as usize;
        if bytes.len() < end {
            return Ok(None);
        }
        let body = self.at + head..self.at + end;
        self.at = body.end;
        Ok(Some((flags, body)))
    }
}

/// Splits off a name behind its length in one byte.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (len, rest) = bytes.split_first().ok_or(Malformed)?;
    rest.split_at_checked((*len).into()).ok_or(Malformed)
}

fn command(body: &[u8]) -> Result<Said<'_>, Malformed> {
    let (command, rest) = name(body)?;
    Ok(match command {
        b"READY" => Said::Ready(wanted(rest)?),
        b"SUBSCRIBE" => Said::Subscribe(rest),
        b"CANCEL" => Said::Cancel(rest),
        // The context is behind a time to live, and at most 16 bytes long.
        b"PING" if (2..=18).contains(&rest.len()) => Said::Ping(&rest[2..]),
        b"PING" | b"ERROR" => return Err(Malformed),
        _ => Said::Other,
    })
}

/// Returns the type of our socket that a peer with these properties wants.
fn wanted(mut properties: &[u8]) -> Result<SocketType, Malformed> {
    let mut found = None;
    while !properties.is_empty() {
        let (key, rest) = name(properties)?;
        let (len, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| Malformed)?;
        let (value, rest) = rest.split_at_checked(len).ok_or(Malformed)?;
        properties = rest;
        if key.eq_ignore_ascii_case(b"Socket-Type") {
            found = match value {
                b"SUB" | b"XSUB" => Some(SocketType::Pub),
                b"REQ" | b"DEALER" | b"ROUTER" => Some(SocketType::Router),
                _ => return Err(Malformed),
            };
        }
    }
    found.ok_or(Malformed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns what a peer of this type says first.
    fn opening(kind: &[u8]) -> Vec<u8> {
        let mut bytes = greeting().to_vec();
        let len = (kind.len() as u32).to_be_bytes();
        let (name, identity) = (b"\x0Bsocket-type", b"\x08Identity\0\0\0\0");
        let properties = [&name[..], &len, kind, identity].concat();
        push(&mut bytes, &[&b"\x05READY"[..], &properties].concat(), COMMAND);
        bytes
    }

    /// Returns what a reader understands of bytes that come in pieces, as text, and whether the
    /// connection goes on.
    fn understood(bytes: &[u8], pieces: &[usize]) -> (Vec<String>, bool) {
        let (mut reader, mut said, mut rest) = (Reader::default(), Vec::new(), bytes);
        let mut sizes = pieces.iter().cycle();
        while !rest.is_empty() {
            let size = sizes.next().map_or(rest.len(), |size| (*size).clamp(1, rest.len()));
            reader.add(&rest[..size]);
            rest = &rest[size..];
            loop {
                match reader.next() {
                    Ok(Some(it)) => said.push(format!("{it:?}")),
                    Ok(None) => break,
                    Err(Malformed) => return (said, false),
                }
            }
        }
        (said, true)
    }

    #[test]
    fn peers_say_what_they_want() {
        let mut bytes = opening(b"SUB");
        push_frame(&mut bytes, b"\x01kv", false);
        push(&mut bytes, b"\x09SUBSCRIBEkv", COMMAND);
        push(&mut bytes, b"\x04PING\0\x0Aab", COMMAND);
        push_frame(&mut bytes, &[7; 300], true);
        let (said, goes_on) = understood(&bytes, &[]);
        let long = format!("{:?}", Said::Frame { body: &[7; 300], more: true });
        let expected = [
            "Ready(Pub)".to_owned(),
            format!("{:?}", Said::Frame { body: b"\x01kv", more: false }),
            format!("{:?}", Said::Subscribe(b"kv")),
            format!("{:?}", Said::Ping(b"ab")),
            long,
        ];
        assert!(goes_on);
        assert_eq!(said, expected);
        assert_eq!(understood(&opening(b"DEALER"), &[]), (vec!["Ready(Router)".to_owned()], true));
    }

    #[test]
    fn others_are_rejected_at_the_first_byte_that_shows_it() {
        let goes_on = |bytes: &[u8]| understood(bytes, &[1]).1;
        let changed = |at: usize, byte: u8| {
            let mut bytes = opening(b"SUB");
            bytes[at] = byte;
            bytes
        };
        assert!(goes_on(&opening(b"REQ")));
        // HTTP; a version before 3; another mechanism; a type that talks to no publisher.
        assert!(!goes_on(b"G") && !goes_on(&changed(10, 2)) && !goes_on(&changed(12, b'P')));
        assert!(!goes_on(&opening(b"PUSH")));
        // A message before the type; the type twice; a frame of 2^60 bytes; reserved flags.
        let mut early = greeting().to_vec();
        push_frame(&mut early, b"\x01", false);
        let twice = [opening(b"SUB"), opening(b"SUB")[GREETING..].to_vec()].concat();
        let huge = [&opening(b"SUB")[..], &[LONG, 16, 0, 0, 0, 0, 0, 0, 0]].concat();
        let reserved = [&opening(b"SUB")[..], &[8]].concat();
        assert!([early, twice, huge, reserved].iter().all(|bytes| !goes_on(bytes)));
    }

    /// Flags and bodies of frames.
    fn frames() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
        let body = proptest::collection::vec(any::<u8>(), 0..300);
        proptest::collection::vec((0..16_u8, body), 0..8)
    }

    proptest! {
        #[test]
        fn pieces_do_not_change_what_is_understood(
            kind in prop_oneof![Just("SUB"), Just("REQ"), Just("PULL")],
            frames in frames(),
            pieces in proptest::collection::vec(1..40_usize, 1..8),
            flip in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut bytes = opening(kind.as_bytes());
            for (flags, body) in frames {
                push(&mut bytes, &body, flags & (MORE | COMMAND));
            }
            if let Some((at, byte)) = flip {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let (whole, whole_goes_on) = understood(&bytes, &[]);
            let (parts, parts_go_on) = understood(&bytes, &pieces);
            prop_assert_eq!(whole, parts);
            prop_assert_eq!(whole_goes_on, parts_go_on);
        }
    }
}
