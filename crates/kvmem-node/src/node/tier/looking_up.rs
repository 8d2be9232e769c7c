//! *Looking up*: keys of which a tier over a network does not know at once whether it has them.

use kvmem::tier::Lookup;

use super::Waiting;
use super::fetching::add_waiting;
use super::names::NamedKey;
use super::queue::{Found, PendingLookUp, TierQueue};
use crate::node::sessions::NOWHERE;
use crate::node::{Node, SessionIndex};
use crate::socket::now_ms;
use crate::tier::{LookingUp, TierJob};

/// How long a length that a look-up has found is known, in milliseconds, and how many are.
const KNOWN_MS: u64 = 2000;
const MAX_KNOWN: usize = 1 << 16;

impl Node {
    /// Begins to look up the keys of which neither memory nor the tier knows whether there is a
    /// value. `waiting` [ends](Self::tier_done) for each of them. Returns how many they are.
    pub(crate) fn look_up_in_tier(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        waiting: Waiting,
    ) -> usize {
        let namespace = self.sessions.get(session).namespace;
        let (mut unknown, mut waits) = (Vec::new(), 0);
        if namespace == NOWHERE || self.tier.as_ref().is_none_or(|it| it.tier.knows_all()) {
            return 0;
        }
        for key in keys {
            if self.find(namespace, key).is_some() || self.is_only_in_tier(namespace, key) {
                continue;
            }
            let named = (namespace, key.to_vec());
            if self.tier.as_ref().is_some_and(|it| it.removals.contains_key(&named))
                || !self.begin_look_up(&named, &mut unknown, |it| &mut it.locating, Some(waiting))
            {
                break;
            }
            waits += 1;
        }
        self.push_look_ups(unknown);
        waits
    }

    /// Lets a call wait for the look-up of a key, which is added to `unknown` if it is not under
    /// way. Returns false if the tier knows all its values or is being cleared, or too many calls
    /// wait.
    pub(super) fn begin_look_up(
        &mut self,
        named: &NamedKey,
        unknown: &mut Vec<LookingUp>,
        list: impl Fn(&mut PendingLookUp) -> &mut Vec<Waiting>,
        waiting: Option<Waiting>,
    ) -> bool {
        let tier_key = self.key_in_tier(named.0, &named.1);
        let may_ask = |it: &&mut TierQueue| {
            !it.is_clearing(named.0) && it.tier.len_of(&tier_key) == Lookup::Unknown
        };
        let Some(queue) = self.tier.as_mut().filter(may_ask) else { return false };
        let is_new = !queue.look_ups.contains_key(named);
        let look_up = queue.look_ups.entry(named.clone()).or_default();
        look_up.fetch |= waiting.is_none();
        if !add_waiting(list(look_up), waiting) {
            return false;
        }
        if is_new {
            unknown.push(LookingUp { namespace: named.0, key: named.1.clone(), tier_key });
        }
        true
    }

    pub(super) fn push_look_ups(&mut self, keys: Vec<LookingUp>) {
        if let Some(queue) = self.tier.as_mut().filter(|_| !keys.is_empty()) {
            queue.jobs.push(TierJob::LookUp(keys));
        }
    }

    /// Takes the length that a look-up has found. Returns the calls that wait no longer: those that
    /// want the value wait until it is [fetched](Self::fetch_found).
    pub(super) fn looked_up(&mut self, value: LookingUp, len: Option<u64>) -> Vec<Waiting> {
        let named = (value.namespace, value.key);
        let queue = self.tier.as_mut().expect("there is a tier");
        let Some(look_up) = queue.look_ups.remove(&named) else { return Vec::new() };
        let PendingLookUp { acquiring, mut locating, fetch } = look_up;
        let free = !queue.fetches.contains_key(&named) && !queue.removals.contains_key(&named);
        if let Some(len) = len.filter(|_| free && !queue.is_clearing(named.0)) {
            if queue.known.len() >= MAX_KNOWN {
                queue.known.clear();
            }
            queue.known.insert(named.clone(), (len, now_ms() + KNOWN_MS));
            if fetch || !acquiring.is_empty() {
                queue.found.push_back(Found { named, len, waiting: acquiring });
                return locating;
            }
        }
        locating.extend(acquiring);
        locating
    }
}
