//! The tables of `docs/locks.md` name every file that declares a lock, and no other.

use std::collections::BTreeSet;
use std::fs;

use switchyard_source::is_for_tests;
use syn::visit::{self, Visit};
use syn::{Field, ItemStatic, PathSegment, Type};

use super::repository;
use super::source::sources;

/// The types of locks.
const TYPES: [&str; 5] = ["Flock", "KeyedLock", "Mutex", "RwLock", "Semaphore"];
/// Code by which files without such a type lock a file.
const FILE_LOCKS: [&str; 3] = ["Flock::lock(", "TryLockError::", " lock.lock()"];
/// Doubles for tests.
const DOUBLES: [&str; 3] = [
    "backends/contract/",
    "backends/fake/",
    "gateway/swarm/src/test_util.rs",
];

/// True if a field or a static has the type of a lock.
#[derive(Default)]
struct Declarations(bool);

/// True if a type is one of a lock, or has one in it.
struct LockType(bool);

impl<'ast> Visit<'ast> for Declarations {
    fn visit_field(&mut self, field: &'ast Field) {
        if !is_for_tests(&field.attrs) {
            self.look_at(&field.ty);
        }
    }

    fn visit_item_static(&mut self, item: &'ast ItemStatic) {
        self.look_at(&item.ty);
    }
}

impl Declarations {
    fn look_at(&mut self, declared: &Type) {
        let mut lock = LockType(false);
        lock.visit_type(declared);
        self.0 |= lock.0;
    }
}

impl<'ast> Visit<'ast> for LockType {
    fn visit_path_segment(&mut self, segment: &'ast PathSegment) {
        self.0 |= TYPES.iter().any(|name| segment.ident == name);
        visit::visit_path_segment(self, segment);
    }
}

/// The files of the gateway and its backends with a lock.
fn files_with_locks() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources() {
        for (_, module) in source.root.all() {
            let file = module
                .file
                .strip_prefix(repository())
                .expect("it is in the repository");
            let file = file.to_str().expect("it is ASCII");
            let is_ours = ["gateway/", "backends/"]
                .iter()
                .any(|dir| file.starts_with(dir));
            if !is_ours || DOUBLES.iter().any(|dir| file.starts_with(dir)) {
                continue;
            }
            let mut declarations = Declarations::default();
            module
                .items
                .iter()
                .for_each(|item| declarations.visit_item(item));
            let text = fs::read_to_string(&module.file).expect("a source file can be read");
            if declarations.0 || FILE_LOCKS.iter().any(|call| text.contains(call)) {
                found.insert(file.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_lock_is_on_the_page() {
    let page = fs::read_to_string(repository().join("docs/locks.md")).expect("the page is there");
    let rows: String = page.lines().filter(|line| line.starts_with('|')).collect();
    let words = rows
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.ends_with(".rs"));
    let named: BTreeSet<String> = words.map(str::to_owned).collect();
    let found = files_with_locks();
    let missing: Vec<_> = found.difference(&named).collect();
    let gone: Vec<_> = named.difference(&found).collect();
    assert!(
        missing.is_empty(),
        "docs/locks.md has no row for the locks of {missing:?}"
    );
    assert!(
        gone.is_empty(),
        "docs/locks.md names files that have no lock any more: {gone:?}"
    );
}

#[test]
fn fields_and_statics_are_declarations() {
    let has_lock = |code: &str| {
        let mut declarations = Declarations::default();
        declarations.visit_file(&syn::parse_file(code).expect("the code of this test is Rust"));
        declarations.0
    };
    assert!(has_lock("struct A { b: Arc<tokio::sync::Mutex<()>> }"));
    assert!(has_lock(
        "fn a() { static B: Semaphore = Semaphore::const_new(1); }"
    ));
    assert!(!has_lock(
        "fn a(b: &Mutex<u8>) {} struct C { #[cfg(test)] d: Mutex<u8> }"
    ));
}
