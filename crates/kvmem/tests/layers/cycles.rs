//! Inside a layer no module uses itself through others.
//!
//! At each level of the file tree the files and folders beside each other form no cycle: a reader
//! can order them so that each needs only those before it. `mod.rs` declares and re-exports, so a
//! path through it counts as a use of the file that defines the name.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path of names, outermost first.
type ModulePath = Vec<String>;

/// A source file's names and what it uses of the crate.
#[derive(Default)]
struct Module {
    /// It is a folder's `mod.rs`.
    is_folder: bool,
    /// Absolute paths that it uses or re-exports.
    uses: BTreeSet<ModulePath>,
    /// Re-exported names with the absolute paths behind them.
    exports: BTreeMap<String, ModulePath>,
    /// Absolute paths of the modules of which it re-exports everything.
    globs: Vec<ModulePath>,
    /// Items of a `mod.rs` that neither declare nor re-export.
    definitions: Vec<String>,
}

/// Reads the tokens of one source file.
struct Reader<'a> {
    module: &'a mut Module,
    /// The path of the file's module.
    here: ModulePath,
}

/// Whether an attribute is `cfg(test)`, or that without a checker.
fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text == "cfg(all(test,not(loom)))"
}

impl Reader<'_> {
    /// Reads items and bodies alike: a path may stand anywhere. `depth` counts inline modules.
    fn read(&mut self, tokens: TokenStream, depth: usize) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at..] {
                // `#[cfg(test)] mod tests { … }` and `#[cfg(test)] use …;`: not part of the layer.
                [TokenTree::Punct(hash), TokenTree::Group(attribute), ..]
                    if hash.as_char() == '#' && is_for_tests(attribute) =>
                {
                    at += 2;
                    while at < tokens.len() && !ends_item(&tokens[at]) {
                        at += 1;
                    }
                    at += 1;
                }
                [TokenTree::Ident(word), TokenTree::Ident(_), TokenTree::Group(body), ..]
                    if word == "mod" =>
                {
                    self.read(body.stream(), depth + 1);
                    at += 3;
                }
                [TokenTree::Ident(word), ..] if word == "use" => {
                    let end = at + tokens[at..].iter().take_while(|token| !is(token, ';')).count();
                    let exported = at > 0 && exports(&tokens[..at]);
                    self.import(&tokens[at + 1..end], &[], true, depth, exported);
                    at = end + 1;
                }
                [TokenTree::Ident(word), ..] if word == "crate" || word == "super" => {
                    // `pub(crate)` and `pub(in super::…)` name no use.
                    if at + 1 < tokens.len() && is(&tokens[at + 1], ':') {
                        let path: Vec<TokenTree> = tokens[at..]
                            .iter()
                            .take_while(|token| {
                                matches!(token, TokenTree::Ident(_)) || is(token, ':')
                            })
                            .cloned()
                            .collect();
                        at += path.len();
                        self.import(&path, &[], true, depth, false);
                    } else {
                        at += 1;
                    }
                }
                [TokenTree::Ident(word), TokenTree::Group(group), ..]
                    if word == "pub" && group.delimiter() == Delimiter::Parenthesis =>
                {
                    at += 2;
                }
                [TokenTree::Group(group), ..] => {
                    self.read(group.stream(), depth);
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads one tree of a `use`, whose outer part is `base`.
    fn import(
        &mut self,
        tree: &[TokenTree],
        base: &[String],
        first: bool,
        depth: usize,
        exported: bool,
    ) {
        let mut base = base.to_vec();
        // How far up `super` leads, beginning with the inline modules of the file.
        let mut inside = depth;
        let mut resolved = !first;
        let mut at = 0;
        while at < tree.len() {
            match &tree[at] {
                TokenTree::Ident(word) if word == "crate" => {
                    base.clear();
                    resolved = true;
                }
                TokenTree::Ident(word) if word == "super" => {
                    if !resolved {
                        base.clone_from(&self.here);
                        resolved = true;
                    }
                    if inside > 0 {
                        inside -= 1;
                    } else {
                        base.pop();
                    }
                }
                TokenTree::Ident(word) if word == "self" => {
                    // In a group it is the group's own path.
                    base = if resolved { base } else { self.here.clone() };
                    resolved = true;
                }
                TokenTree::Ident(word) if word == "as" => {
                    let name = tree[at + 1].to_string();
                    self.imported(base, Some(name), exported);
                    return;
                }
                TokenTree::Ident(name) => {
                    if !resolved {
                        // A path of a `mod.rs` may begin with a child; others name another crate.
                        base.clone_from(&self.here);
                        resolved = true;
                    }
                    base.push(name.to_string());
                }
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                    for tree in inner.split(|token| is(token, ',')) {
                        self.import(tree, &base, first && !resolved, inside, exported);
                    }
                    return;
                }
                TokenTree::Punct(star) if star.as_char() == '*' => {
                    self.module.globs.push(base.clone());
                    self.module.uses.insert(base);
                    return;
                }
                _ => {}
            }
            at += 1;
        }
        if resolved && !base.is_empty() {
            self.imported(base, None, exported);
        }
    }

    fn imported(&mut self, path: ModulePath, name: Option<String>, exported: bool) {
        if exported {
            let name = name.unwrap_or_else(|| path.last().expect("a name").clone());
            self.module.exports.insert(name, path.clone());
        }
        self.module.uses.insert(path);
    }
}

fn is(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == wanted)
}

/// A `;` or a body ends an item.
fn ends_item(token: &TokenTree) -> bool {
    is(token, ';')
        || matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// Whether the tokens before a `use` make it public to other files.
fn exports(before: &[TokenTree]) -> bool {
    match before {
        [.., TokenTree::Ident(word)] => word == "pub",
        [.., TokenTree::Ident(word), TokenTree::Group(_)] => word == "pub",
        _ => false,
    }
}

/// Lists what a `mod.rs` holds beside declarations and re-exports.
fn definitions(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at..] {
            [TokenTree::Ident(word), ..] if word == "use" || word == "mod" => {
                while at < tokens.len() && !is(&tokens[at], ';') {
                    at += 1;
                }
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), ..]
                if ["fn", "struct", "enum", "trait", "type", "const", "static", "union"]
                    .contains(&word.to_string().as_str()) =>
            {
                found.push(format!("{word} {name}"));
                at += 1;
            }
            [TokenTree::Ident(word), ..] if word == "impl" || word == "macro_rules" => {
                found.push(word.to_string());
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Every module of the library, by its path.
struct Tree(BTreeMap<ModulePath, Module>);

impl Tree {
    fn of(sources: &[(ModulePath, String)]) -> Tree {
        let mut modules = BTreeMap::new();
        let folders: BTreeSet<ModulePath> = sources
            .iter()
            .filter(|(path, _)| path.len() > 1 && !path.iter().any(|name| name == "tests"))
            .map(|(path, _)| path[..path.len() - 1].to_vec())
            .collect();
        for (path, source) in sources {
            if path.iter().any(|name| name == "tests" || name == "models") {
                continue;
            }
            let mut module = Module { is_folder: folders.contains(path), ..Module::default() };
            let tokens: TokenStream = source.parse().expect("the compiler has read it before");
            if module.is_folder {
                module.definitions = definitions(tokens.clone());
            }
            Reader { module: &mut module, here: path.clone() }.read(tokens, 0);
            modules.insert(path.clone(), module);
        }
        Tree(modules)
    }

    /// Returns the file that defines the last name of `path`, if it is one of the crate's.
    fn definer(&self, path: &[String]) -> Option<ModulePath> {
        self.search(path, 8)
    }

    fn search(&self, path: &[String], steps: usize) -> Option<ModulePath> {
        // The longest beginning that is a module.
        let length = (1..=path.len()).rev().find(|end| self.0.contains_key(&path[..*end]))?;
        let module = &self.0[&path[..length]];
        let here = || path[..length].to_vec();
        if !module.is_folder || length == path.len() || steps == 0 {
            return Some(here());
        }
        if let Some(target) = module.exports.get(&path[length])
            && *target != path[..=length]
        {
            let further: ModulePath = target.iter().chain(&path[length + 1..]).cloned().collect();
            return self.search(&further, steps - 1);
        }
        Some(here())
    }

    /// Lists the uses between children of one folder, for every folder: folder, user, used, and
    /// the path as an example.
    fn uses(&self) -> BTreeMap<ModulePath, BTreeMap<(String, String), String>> {
        let mut found: BTreeMap<ModulePath, BTreeMap<(String, String), String>> = BTreeMap::new();
        for (user, module) in &self.0 {
            // A `mod.rs` re-exports what stands below it.
            if module.is_folder && module.definitions.is_empty() {
                continue;
            }
            for path in &module.uses {
                let Some(used) = self.definer(path) else { continue };
                let common = user.iter().zip(&used).take_while(|(one, other)| one == other).count();
                if common == 0 || used == *user {
                    continue;
                }
                let child = |path: &ModulePath| {
                    path.get(common).map_or("mod.rs".to_owned(), |name| name.clone())
                };
                let example = format!("{} uses {}", user.join("::"), path.join("::"));
                found
                    .entry(user[..common].to_vec())
                    .or_default()
                    .entry((child(user), child(&used)))
                    .or_insert(example);
            }
        }
        found
    }

    /// Lists the cycles, each as the uses of which it consists.
    fn cycles(&self) -> Vec<(ModulePath, Vec<String>)> {
        let mut cycles = Vec::new();
        for (folder, uses) in self.uses() {
            // What each child reaches, to the fixed point.
            let mut reached: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
            for (user, used) in uses.keys() {
                reached.entry(user).or_default().insert(used);
            }
            loop {
                let mut changed = false;
                for user in reached.keys().copied().collect::<Vec<_>>() {
                    let further: BTreeSet<&String> = reached[user]
                        .iter()
                        .filter_map(|used| reached.get(*used))
                        .flatten()
                        .copied()
                        .collect();
                    let own = reached.get_mut(user).expect("it is one of the keys");
                    let before = own.len();
                    own.extend(further);
                    changed |= own.len() > before;
                }
                if !changed {
                    break;
                }
            }
            let reaches = |user: &String, used: &String| {
                reached.get(user).is_some_and(|all| all.contains(used))
            };
            let parts: Vec<String> = uses
                .iter()
                .filter(|((user, used), _)| reaches(used, user))
                .map(|((user, used), example)| format!("  {user} → {used}: {example}"))
                .collect();
            if !parts.is_empty() {
                cycles.push((folder, parts));
            }
        }
        cycles
    }
}

/// Fails if the modules of a layer form a cycle, or a `mod.rs` defines something.
pub(super) fn check(sources: &[(ModulePath, String)]) {
    let tree = Tree::of(sources);
    let mut faults = Vec::new();
    for (folder, parts) in tree.cycles() {
        faults.push(format!("a cycle in {}:\n{}", folder.join("/"), parts.join("\n")));
    }
    for (path, module) in &tree.0 {
        if !module.definitions.is_empty() {
            faults.push(format!(
                "{}/mod.rs defines {}: it declares and re-exports, and nothing else",
                path.join("/"),
                module.definitions.join(", ")
            ));
        }
        for glob in &module.globs {
            let folder = tree.0.get(glob).is_some_and(|module| module.is_folder);
            if folder && path.starts_with(glob) {
                faults.push(format!(
                    "{} uses everything of {}: name what it needs",
                    path.join("::"),
                    glob.join("::")
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the cycles in a made-up layer of the files `(path, source)`.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<(ModulePath, String)> = files
        .iter()
        .map(|(path, source)| (path.split("::").map(str::to_owned).collect(), (*source).to_owned()))
        .collect();
    Tree::of(&sources).cycles().into_iter().flat_map(|(_, parts)| parts).collect()
}

#[test]
fn a_cycle_is_found_however_it_is_written() {
    let front = ("l", "mod a; mod b; pub use a::A; pub(crate) use b::{B, C as D};");
    for back in [
        "use super::b::B;",
        "use super::B;",
        "use super::D;",
        "use crate::l::{b::B};",
        "fn f() { super::B::new() }",
        "fn f(x: &crate::l::D) {}",
        "mod inner { use super::super::B; }",
        "macro_rules! m { () => { $crate::l::B } }",
    ] {
        let found = cycles_of(&[front, ("l::a", back), ("l::b", "use super::A;")]);
        assert_eq!(found.len(), 2, "{back}: {found:?}");
    }
    // Through a third, and between folders.
    let ring = [
        ("l", "mod a; mod b; mod c;"),
        ("l::a", "use super::b::B;"),
        ("l::b", "use super::c::C;"),
        ("l::c", "use super::a::A;"),
    ];
    assert_eq!(cycles_of(&ring).len(), 3);
    let folders = [
        ("l", "mod x; mod y;"),
        ("l::x", "mod a; mod b;"),
        ("l::x::a", "use super::super::y::C;"),
        ("l::x::b", ""),
        ("l::y", "mod c; pub use c::C;"),
        ("l::y::c", "use crate::l::x::b::B;"),
    ];
    assert_eq!(cycles_of(&folders).len(), 2);
}

#[test]
fn what_is_no_cycle_is_not_reported() {
    let front = ("l", "mod a; mod b; pub use a::A; pub use b::B;");
    for back in [
        "",
        "#[cfg(test)] mod tests { use super::super::B; }",
        "#[cfg(test)] use super::B;",
        "#[cfg(all(test, not(loom)))] use super::B;",
        "pub(in crate::l) struct S; pub(super) fn f() {}",
        "use std::b::B; use super::a::A;",
        "//! use super::B;\nfn f() -> &'static str { \"super::B\" }",
    ] {
        let found = cycles_of(&[front, ("l::a", back), ("l::b", "use super::A;")]);
        assert_eq!(found, Vec::<String>::new(), "{back}");
    }
}

#[test]
fn a_definition_in_a_mod_file_is_found() {
    for (source, count) in [
        ("//! Theory.\nmod a; pub use a::{A, B}; #[cfg(test)] mod tests;", 0),
        ("mod a; pub struct S;", 1),
        ("mod a; pub(crate) const N: usize = 1; fn f() {}", 2),
        ("impl a::A { fn f() {} }", 1),
    ] {
        let found = definitions(source.parse().expect("Rust"));
        assert_eq!(found.len(), count, "{source}: {found:?}");
    }
}
