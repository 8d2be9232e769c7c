//! *Access*: which users may connect, in which namespaces they read or write, and which of them are
//! operators.
//!
//! The kernel says which user and groups a peer has, as they were when it connected. The decisions
//! are functions of these alone:
//!
//! | peer | connects | namespaces | operators' calls, no quota of a user |
//! |---|---|---|---|
//! | the server's own user | yes | writes to all | yes |
//! | an [operator](super::ServerOptions::operators) | yes | reads all, and writes as a rule says | yes |
//! | named by a [rule](NamespaceRule) of a namespace, or a member of a group that is | yes | that one, as the rule says | no |
//! | a member of an [allowed group](AllowedGroup) | yes | those without a rule, as the group says | no |
//! | all others, root included | no | none | no |
//!
//! Of several rules for one peer, the one that allows more holds. Root is a user as any other,
//! because a process that is root in its container has its number.
//!
//! # What this does not do
//!
//! The memory is one file. A client that may write in one namespace can write to all bytes, and one
//! that may read can read all bytes. Rules separate keys, events and figures. Only *reading* is a
//! boundary for bytes: the descriptor of such a client is opened for reading, and the mode of the
//! file prevents other users from opening it again for writing. Tenants that do not trust each
//! other have servers of their own.

use std::collections::HashMap;

use super::options::{AllowedGroup, Principal, ServerOptions};
use super::quantum::USER_PLACES;
use crate::error::{AccessError, CallError};
use crate::format::MAX_NAMESPACE_NAME;

/// The extent to which a peer may use a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    None,
    Read,
    Write,
}

impl Access {
    fn of(read_only: bool) -> Access {
        if read_only { Access::Read } else { Access::Write }
    }
}

/// A number that is no user and no group: calls of the kernel use it for "unchanged".
const NOBODY: u32 = u32::MAX;

/// The rules of a server.
#[derive(Debug)]
pub(super) struct AccessRules {
    /// The server's own user.
    own: u32,
    groups: Vec<AllowedGroup>,
    operators: Vec<u32>,
    namespaces: HashMap<String, Vec<(Principal, Access)>>,
}

impl AccessRules {
    /// Reads the rules of the options, for a server of user `own`.
    pub(super) fn new(own: u32, options: &ServerOptions) -> Result<AccessRules, AccessError> {
        let mut namespaces: HashMap<String, Vec<(Principal, Access)>> = HashMap::new();
        for rule in &options.namespaces {
            let (len, limit) = (rule.name.len(), MAX_NAMESPACE_NAME);
            if len > limit {
                return Err(AccessError::NamespaceName { name: rule.name.clone(), len, limit });
            }
            check_number("namespaces", rule.who.number())?;
            let access = Access::of(rule.read_only);
            let rules = namespaces.entry(rule.name.clone()).or_default();
            if rules.iter().any(|(who, other)| *who == rule.who && *other != access) {
                let who = format!("{} in namespace {:?}", rule.who, rule.name);
                return Err(AccessError::Contradiction { who });
            }
            rules.push((rule.who, access));
        }
        for group in &options.allow_groups {
            check_number("allow_groups", group.gid)?;
            let opposite = AllowedGroup { read_only: !group.read_only, ..*group };
            if options.allow_groups.contains(&opposite) {
                let who = Principal::Group(group.gid).to_string();
                return Err(AccessError::Contradiction { who });
            }
        }
        options.operators.iter().try_for_each(|uid| check_number("operators", *uid))?;
        let groups = options.allow_groups.clone();
        Ok(AccessRules { own, groups, operators: options.operators.clone(), namespaces })
    }

    /// Returns whether a user may make the calls of operators. No quota of a user holds for it.
    pub(super) fn is_operator(&self, uid: u32) -> bool {
        uid == self.own || self.operators.contains(&uid)
    }

    /// Returns whether a peer may connect.
    pub(super) fn may_connect(&self, uid: u32, groups: &[u32]) -> bool {
        self.is_operator(uid)
            || self.groups.iter().any(|group| groups.contains(&group.gid))
            || self.namespaces.values().flatten().any(|(who, _)| who.has(uid, groups))
    }

    /// Returns the server's own user.
    pub(super) fn own(&self) -> u32 {
        self.own
    }

    /// Returns the most places of `all` that a user may have.
    pub(super) fn positions_of(&self, uid: u32, all: usize) -> usize {
        if self.is_operator(uid) { all } else { (all / USER_PLACES).max(1) }
    }

    /// Returns the error for a peer that may not use a namespace as it wants to.
    pub(super) fn check(
        &self,
        uid: u32,
        groups: &[u32],
        name: &str,
        read_only: bool,
    ) -> Result<(), CallError> {
        match self.namespace(uid, groups, name) {
            Access::Write => Ok(()),
            Access::Read if read_only => Ok(()),
            Access::Read => Err(CallError::OnlyReads { uid, name: name.to_owned() }),
            Access::None => Err(CallError::NamespaceNotAllowed { uid, name: name.to_owned() }),
        }
    }

    /// Returns the extent to which a peer may use the namespace of this name.
    pub(super) fn namespace(&self, uid: u32, groups: &[u32], name: &str) -> Access {
        if uid == self.own {
            return Access::Write;
        }
        let ruled = match self.namespaces.get(name) {
            Some(rules) => {
                let own = rules.iter().filter(|(who, _)| who.has(uid, groups));
                own.map(|(_, access)| *access).max()
            }
            None => {
                let own = self.groups.iter().filter(|group| groups.contains(&group.gid));
                own.map(|group| Access::of(group.read_only)).max()
            }
        };
        let least = if self.is_operator(uid) { Access::Read } else { Access::None };
        ruled.unwrap_or(Access::None).max(least)
    }

    /// Returns whether a peer sees the keys and figures of the namespace of this name. `None`
    /// stands for one that has no name any more.
    pub(super) fn sees(&self, uid: u32, groups: &[u32], name: Option<&str>) -> bool {
        match name {
            Some(name) => self.namespace(uid, groups, name) >= Access::Read,
            None => self.is_operator(uid) || self.namespaces.is_empty(),
        }
    }

    /// Returns the mode of the socket's file, and the group that it gets. The mode lets in all that
    /// may connect, and perhaps others: a file has one group. The server asks the kernel about each
    /// peer.
    pub(super) fn socket_mode(&self) -> (u32, Option<u32>) {
        let ruled = self.namespaces.values().flatten().map(|(who, _)| *who);
        let allowed = self.groups.iter().map(|group| Principal::Group(group.gid));
        let operators = self.operators.iter().map(|uid| Principal::User(*uid));
        // Root needs no permission of a file.
        let is_other = |who: &Principal| match *who {
            Principal::User(uid) => uid != self.own && uid != 0,
            Principal::Group(_) => true,
        };
        let mut others = ruled.chain(allowed).chain(operators).filter(is_other);
        match others.next() {
            None => (0o600, None),
            Some(Principal::Group(gid)) if others.all(|who| who == Principal::Group(gid)) => {
                (0o660, Some(gid))
            }
            Some(_) => (0o666, None),
        }
    }
}

impl Principal {
    fn has(self, uid: u32, groups: &[u32]) -> bool {
        match self {
            Principal::User(user) => user == uid,
            Principal::Group(gid) => groups.contains(&gid),
        }
    }

    fn number(self) -> u32 {
        match self {
            Principal::User(number) | Principal::Group(number) => number,
        }
    }
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Principal::User(uid) => write!(f, "user {uid}"),
            Principal::Group(gid) => write!(f, "group {gid}"),
        }
    }
}

fn check_number(option: &'static str, number: u32) -> Result<(), AccessError> {
    if number == NOBODY { Err(AccessError::NoPrincipal { option, number }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::NamespaceRule;

    const OWN: u32 = 500;

    fn group(gid: u32, read_only: bool) -> AllowedGroup {
        AllowedGroup { gid, read_only }
    }

    fn rule(name: &str, who: Principal, read_only: bool) -> NamespaceRule {
        NamespaceRule { name: name.to_owned(), who, read_only }
    }

    /// Groups 10 (writes) and 20 (reads), operators 0 and 600, and rules for three namespaces.
    fn options() -> ServerOptions {
        ServerOptions {
            allow_groups: vec![group(10, false), group(20, true)],
            operators: vec![0, 600],
            namespaces: vec![
                rule("chat", Principal::User(1000), false),
                rule("chat", Principal::Group(30), true),
                rule("", Principal::Group(10), true),
                rule("ops", Principal::User(600), false),
            ],
            ..ServerOptions::default()
        }
    }

    fn rules(options: &ServerOptions) -> AccessRules {
        AccessRules::new(OWN, options).expect("possible")
    }

    #[test]
    fn each_peer_has_the_access_of_its_best_rule() {
        use Access::{None as No, Read, Write};
        let rules = rules(&options());
        // The user, its groups; whether it connects and operates; chat, the nameless, ops, another.
        type Case<'a> = (u32, &'a [u32], bool, bool, [Access; 4]);
        let table: [Case<'_>; 12] = [
            (OWN, &[], true, true, [Write, Write, Write, Write]),
            (0, &[0], true, true, [Read, Read, Read, Read]),
            (600, &[600], true, true, [Read, Read, Write, Read]),
            (600, &[10], true, true, [Read, Read, Write, Write]),
            (1000, &[1000], true, false, [Write, No, No, No]),
            (1000, &[30], true, false, [Write, No, No, No]),
            (1001, &[5, 30], true, false, [Read, No, No, No]),
            (1001, &[10], true, false, [No, Read, No, Write]),
            (1001, &[20], true, false, [No, No, No, Read]),
            (1001, &[20, 10], true, false, [No, Read, No, Write]),
            (1001, &[1001, 40], false, false, [No, No, No, No]),
            (1001, &[], false, false, [No, No, No, No]),
        ];
        for (uid, groups, connects, operates, expected) in table {
            let case = format!("user {uid} of {groups:?}");
            assert_eq!(rules.may_connect(uid, groups), connects, "{case}");
            assert_eq!(rules.is_operator(uid), operates, "{case}");
            let found = ["chat", "", "ops", "other"].map(|name| rules.namespace(uid, groups, name));
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn without_options_only_the_own_user_connects() {
        let of_user = rules(&ServerOptions::default());
        for (uid, connects) in [(OWN, true), (0, false), (1000, false)] {
            assert_eq!(of_user.may_connect(uid, &[0, 10, OWN]), connects, "user {uid}");
            assert_eq!(of_user.is_operator(uid), connects, "user {uid}");
        }
        let of_root = AccessRules::new(0, &ServerOptions::default()).expect("possible");
        assert!(of_root.is_operator(0) && of_root.namespace(0, &[], "any") == Access::Write);
        assert!(!of_root.may_connect(OWN, &[0]));
    }

    #[test]
    fn the_mode_of_the_socket_lets_in_all_that_may_connect() {
        let mode = |change: fn(&mut ServerOptions)| {
            let mut options = ServerOptions::default();
            change(&mut options);
            rules(&options).socket_mode()
        };
        assert_eq!(mode(|_| ()), (0o600, None));
        assert_eq!(mode(|it| it.operators = vec![0, OWN]), (0o600, None));
        assert_eq!(mode(|it| it.operators = vec![7]), (0o666, None));
        assert_eq!(mode(|it| it.allow_groups = vec![group(10, true)]), (0o660, Some(10)));
        let same_group = |it: &mut ServerOptions| {
            it.allow_groups = vec![group(10, true)];
            it.namespaces = vec![rule("chat", Principal::Group(10), false)];
        };
        assert_eq!(mode(same_group), (0o660, Some(10)));
        let two = |it: &mut ServerOptions| {
            it.allow_groups = vec![group(10, true), group(11, true)];
        };
        assert_eq!(mode(two), (0o666, None));
        let user = |it: &mut ServerOptions| {
            it.namespaces = vec![rule("chat", Principal::User(10), false)];
        };
        assert_eq!(mode(user), (0o666, None));
        assert_eq!(rules(&options()).socket_mode(), (0o666, None));
    }

    #[test]
    fn impossible_rules_are_errors() {
        let error = |change: &dyn Fn(&mut ServerOptions)| {
            let mut options = options();
            change(&mut options);
            AccessRules::new(OWN, &options).expect_err("impossible").to_string()
        };
        let long = "x".repeat(MAX_NAMESPACE_NAME + 1);
        let found = error(&|it| it.namespaces.push(rule(&long, Principal::User(1), false)));
        assert!(found.contains("57 bytes") && found.contains("at most 56"), "{found}");
        let found = error(&|it| it.operators.push(u32::MAX));
        assert!(found.contains("operators") && found.contains("4294967295"), "{found}");
        let found = error(&|it| it.allow_groups.push(group(u32::MAX, false)));
        assert!(found.contains("allow_groups"), "{found}");
        let found = error(&|it| it.namespaces.push(rule("a", Principal::Group(u32::MAX), false)));
        assert!(found.contains("namespaces"), "{found}");
        let found = error(&|it| it.allow_groups.push(group(10, true)));
        assert!(found.contains("group 10") && found.contains("both"), "{found}");
        let found = error(&|it| it.namespaces.push(rule("chat", Principal::User(1000), true)));
        assert!(found.contains("user 1000 in namespace \"chat\""), "{found}");
    }
}
