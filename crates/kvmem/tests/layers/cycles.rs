//! Inside a crate no module uses itself through others, and no layer one above it.
//!
//! At each level of the file tree the files and folders beside each other form no cycle: a reader
//! can order them so that each needs only those before it. A re-export uses nothing, so a path
//! through it counts as a use of the file that defines the name. Two uses do not count:
//!
//! - that of a file by the file of its folder (`mod.rs`, the file with the folder's name, `lib.rs`,
//!   `main.rs`), which is made of the folder's files as a structure is made of its fields;
//! - that of a type by a file that adds methods to it. A type may have its methods in several files
//!   by groups, each with what the group needs, and the file of the type has fields of these.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A path of names, outermost first.
type ModulePath = Vec<String>;

/// A source file's names and what it uses of the crate.
#[derive(Default)]
struct Module {
    /// It is the file of a folder.
    is_folder: bool,
    /// Absolute paths that it uses or re-exports.
    uses: BTreeSet<ModulePath>,
    /// Re-exported names with the absolute paths behind them.
    exports: BTreeMap<String, ModulePath>,
    /// Absolute paths of the modules of which it re-exports everything.
    globs: Vec<ModulePath>,
    /// Items of a folder's file that neither declare nor re-export.
    definitions: Vec<String>,
    /// Types to which it adds methods.
    extends: BTreeSet<String>,
    /// Names that the file uses outside its imports.
    words: BTreeSet<String>,
    /// Modules that only tests have.
    for_tests: BTreeSet<String>,
}

/// Reads the tokens of one source file.
struct Reader<'a> {
    module: &'a mut Module,
    /// The path of the file's module.
    here: ModulePath,
}

/// Whether an attribute is `cfg(test)`, or that with further conditions.
fn is_for_tests(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
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
                        if let [TokenTree::Ident(word), TokenTree::Ident(name), ..] = &tokens[at..]
                            && word == "mod"
                        {
                            self.module.for_tests.insert(name.to_string());
                        }
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
                [TokenTree::Ident(word), TokenTree::Group(group), ..]
                    if word == "pub" && group.delimiter() == Delimiter::Parenthesis =>
                {
                    at += 2;
                }
                [TokenTree::Ident(word), rest @ ..] if word == "impl" => {
                    self.module.extends.extend(extended(rest));
                    at += 1;
                }
                [TokenTree::Ident(word), ..] => {
                    // `pub(crate)` and `pub(in super::…)` name no use.
                    self.module.words.insert(word.to_string());
                    if matches!(&tokens[at + 1..], [one, two, ..] if is(one, ':') && is(two, ':')) {
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
            self.module.exports.insert(name, path);
        } else {
            self.module.uses.insert(path);
        }
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

/// Returns the type to which the tokens after an `impl` add methods, if these are no trait's.
fn extended(tokens: &[TokenTree]) -> Option<String> {
    let mut depth = 0;
    let mut name = None;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '<' => depth += 1,
            TokenTree::Punct(punct) if punct.as_char() == '>' => depth -= 1,
            TokenTree::Ident(word) if word == "for" => return None,
            TokenTree::Ident(word) if word == "where" => break,
            TokenTree::Ident(word) if depth == 0 => name = Some(word.to_string()),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
            _ => {}
        }
    }
    name
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
            .filter(|(path, _)| !path.is_empty() && !path.iter().any(|name| name == "tests"))
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
            // What it re-exports, and uses itself.
            let used = module.exports.iter().filter(|(name, _)| module.words.contains(*name));
            let used: Vec<ModulePath> = used.map(|(_, path)| path.clone()).collect();
            module.uses.extend(used);
            modules.insert(path.clone(), module);
        }
        let for_tests: Vec<ModulePath> = modules
            .iter()
            .flat_map(|(path, module)| module.for_tests.iter().map(|name| child(path, name)))
            .collect();
        modules.retain(|path, _| !for_tests.iter().any(|tests| path.starts_with(tests)));
        Tree(modules)
    }

    /// Returns the file that defines the last name of `path`, if it is one of the crate's.
    fn definer(&self, path: &[String]) -> Option<ModulePath> {
        self.search(path, 8)
    }

    fn search(&self, path: &[String], steps: usize) -> Option<ModulePath> {
        // The longest beginning that is a module.
        let length = (0..=path.len()).rev().find(|end| self.0.contains_key(&path[..*end]))?;
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
                if path.last().is_some_and(|name| module.extends.contains(name)) {
                    continue;
                }
                let Some(used) = self.definer(path) else { continue };
                let common = user.iter().zip(&used).take_while(|(one, other)| one == other).count();
                if used == *user || used.starts_with(user) {
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

fn child(path: &[String], name: &str) -> ModulePath {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

/// Lists the cycles of a crate's modules. If `fronts_are_lists`, a `mod.rs` that defines something
/// is a fault, too.
pub(super) fn faults(sources: &[(ModulePath, String)], fronts_are_lists: bool) -> Vec<String> {
    let tree = Tree::of(sources);
    let mut faults = Vec::new();
    for (folder, parts) in tree.cycles() {
        faults.push(format!("a cycle in src/{}:\n{}", folder.join("/"), parts.join("\n")));
    }
    for (path, module) in tree.0.iter().filter(|(path, _)| fronts_are_lists && !path.is_empty()) {
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
    faults
}

/// Lists the uses of other top modules that `layers` does not allow: each has a name, and the
/// names that it may use. Tests in files of their own, and `cfg(test)`, use what they need.
pub(super) fn upward(sources: &[(ModulePath, String)], layers: &[(&str, &[&str])]) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, module) in Tree::of(sources).0.iter().filter(|(path, _)| !path.is_empty()) {
        let Some((own, others)) = layers.iter().find(|(layer, _)| *layer == path[0]) else {
            faults.push(format!("`{}` has no place among the layers", path[0]));
            continue;
        };
        let used =
            module.uses.iter().chain(module.exports.values()).filter_map(|path| path.first());
        let wrong = used.filter(|name| name != own && !others.contains(&name.as_str()));
        faults.extend(
            wrong
                .collect::<BTreeSet<_>>()
                .into_iter()
                .map(|name| format!("`{}` uses `{name}`", path.join("::"))),
        );
    }
    faults
}

/// Makes the sources of made-up files `(path, source)`.
fn sources(files: &[(&str, &str)]) -> Vec<(ModulePath, String)> {
    let names =
        |path: &str| path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
    files.iter().map(|(path, source)| (names(path), (*source).to_owned())).collect()
}

/// Returns the cycles in a made-up layer.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    Tree::of(&sources(files)).cycles().into_iter().flat_map(|(_, parts)| parts).collect()
}

#[test]
fn every_upward_path_is_found_and_no_other() {
    let layers: [(&str, &[&str]); 2] = [("sync", &[]), ("offset", &["sync"])];
    for (source, count) in [
        ("use crate::{sync::Mutex, slab::{self, Cache}};", 1),
        ("use super::super::{sync, slab as s};", 1),
        ("pub use super::super::slab::Cache;", 1),
        ("use super::{heap, super::slab};", 1),
        ("fn f(cache: &crate::slab::Cache) { assert_eq!(1, $crate::pool::trim()); }", 2),
        ("mod inner { use super::super::super::slab::*; }", 1),
        ("#[cfg(test)] mod tests { use crate::slab; }", 0),
        ("use crate::offset::heap::Heap; use super::{bins::{self, Hole}}; use slab::Slab;", 0),
        ("pub(crate) fn f() {} pub(in crate::slab) struct S(pub(super) u8);", 0),
        ("//! use crate::slab;\n/* crate::pool */ fn f() -> &'static str { \"crate::slab\" }", 0),
    ] {
        let found = upward(&sources(&[("offset::core", source)]), &layers);
        assert_eq!(found.len(), count, "{source}: {found:?}");
    }
    assert_eq!(upward(&sources(&[("misc", "")]), &layers).len(), 1, "it has no place");
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
fn a_folder_is_made_of_its_files_and_a_type_of_groups_of_methods() {
    let folder = [
        ("", "mod l; use l::Error; struct Cli;"),
        ("l", "mod a; use a::A; pub struct Error; fn f() -> a::B {}"),
        ("l::a", "use super::Error; use crate::Cli;"),
    ];
    assert_eq!(cycles_of(&folder), Vec::<String>::new());
    // Beside its methods the file may use nothing of the type's file.
    for (methods, count) in [
        ("use super::t::T; struct G; impl T { fn f(&self) -> T {} }", 0),
        ("use super::t::T; struct G; impl<K: Ord> T<K> where K: Copy { fn f(&self) {} }", 0),
        ("use super::t::{T, U}; struct G; impl T { fn f(&self) -> U {} }", 2),
        ("use super::t::T; struct G; impl From<G> for T {}", 2),
    ] {
        let files = [("l", "mod t; mod g;"), ("l::t", "use super::g::G;"), ("l::g", methods)];
        assert_eq!(cycles_of(&files).len(), count, "{methods}");
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
