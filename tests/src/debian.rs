//! The files of a fresh Debian on which only certain packages are installed: the packages, their dependencies
//! and the base system.
//!
//! They are computed from this machine's dpkg database and taken from its files, so that nothing is
//! downloaded. A program that works with these files alone works on every machine on which the same packages
//! are installed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Format of dpkg's output: a line for each package.
const FORMAT: &str = "${Package}\t${db:Status-Status}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n";
/// Directory in which dpkg notes which of several programs has a name that they share.
const ALTERNATIVES: &str = "/var/lib/dpkg/alternatives";
/// Directories of programs.
const PROGRAMS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
/// Files that only people read.
const UNUSED: [&str; 3] = ["/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/"];

/// Enters a root and runs a program: `sh -c ENTER sh ROOT DIRECTORY... -- PROGRAM ARGUMENT...`, in a mount
/// namespace of its own.
const ENTER: &str = r#"
set -eu
root=$1
shift
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
mkdir -p "$root/before"
mount -o remount,bind,ro "$root"
cd "$root"
pivot_root . before
cd /
umount -l /before
exec "$@"
"#;

/// The packages that are installed on this machine.
#[derive(Debug)]
pub struct PackageDatabase {
    packages: BTreeMap<String, PackageEntry>,
    /// Virtual packages, and the packages that provide them.
    provided: BTreeMap<String, Vec<String>>,
    alternatives: Vec<Alternative>,
}

#[derive(Debug, Default)]
struct PackageEntry {
    /// Every Debian installation has it.
    base: bool,
    /// Alternatives of each dependency; one of them is needed.
    dependencies: Vec<Vec<String>>,
}

/// A name that several packages offer a program for (update-alternatives(1)).
#[derive(Debug, Default, PartialEq, Eq)]
struct Alternative {
    /// The name in `/etc/alternatives`, and the link to it.
    links: Vec<(String, PathBuf)>,
    /// Candidates for the target of each link, in their order; empty for none.
    candidates: Vec<Vec<PathBuf>>,
}

/// A Debian with nothing but the base system, some packages, and what these depend on.
#[derive(Debug)]
pub struct FreshDebian<'a> {
    database: &'a PackageDatabase,
    packages: BTreeSet<String>,
    /// Each below its real directory, not below a link to one.
    files: BTreeSet<PathBuf>,
}

// === impl PackageDatabase ===

impl PackageDatabase {
    /// Asks dpkg.
    ///
    /// # Panics
    /// If this is no Debian.
    #[must_use]
    pub fn read() -> Self {
        let shown = dpkg(&["--show", &format!("--showformat={FORMAT}")]);
        let alternatives = fs::read_dir(ALTERNATIVES)
            .expect("dpkg is installed")
            .flatten()
            .map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                let text = fs::read_to_string(entry.path()).expect("root can read it");
                Alternative::parse(&name, &text)
            });
        Self {
            alternatives: alternatives.collect(),
            ..Self::parse(&shown)
        }
    }

    fn parse(shown: &str) -> Self {
        let mut packages = BTreeMap::<String, PackageEntry>::new();
        let mut provided = BTreeMap::<_, Vec<_>>::new();
        for line in shown.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, "installed", essential, priority, depends, provides] = fields[..] else {
                continue;
            };
            // No package depends on apt, and no Debian that packages are installed on is without it.
            let base = essential == "yes" || priority == "required" || name == "apt";
            let needs = depends
                .split(',')
                .map(|need| need.split('|').filter_map(package_name).collect());
            packages
                .entry(name.to_owned())
                .or_default()
                .dependencies
                .extend(needs);
            packages.entry(name.to_owned()).or_default().base |= base;
            for other in provides.split(',').filter_map(package_name) {
                provided.entry(other).or_default().push(name.to_owned());
            }
        }
        Self {
            packages,
            provided,
            alternatives: Vec::new(),
        }
    }

    /// Returns whether this package is installed.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.packages.contains_key(name)
    }

    /// A Debian with these packages, without what they merely recommend.
    ///
    /// # Panics
    /// If one of them is not installed here.
    #[must_use]
    pub fn fresh_debian(&self, list: &[String]) -> FreshDebian<'_> {
        let packages = self.closure(list);
        let names: Vec<&str> = packages.iter().map(String::as_str).collect();
        let listed = dpkg(&[&["--listfiles"], names.as_slice()].concat());
        let mut real = HashMap::<PathBuf, Option<PathBuf>>::new();
        let files = listed
            .lines()
            .map(Path::new)
            .filter(|path| path.is_absolute());
        let files = files
            .filter(|path| !UNUSED.iter().any(|dir| path.starts_with(dir)))
            .filter_map(|path| {
                let dir = path.parent()?;
                let name = path.file_name()?;
                let dir = real
                    .entry(dir.to_owned())
                    .or_insert_with(|| dir.canonicalize().ok());
                Some(dir.as_ref()?.join(name))
            });
        FreshDebian {
            database: self,
            files: files.collect(),
            packages,
        }
    }

    fn closure(&self, list: &[String]) -> BTreeSet<String> {
        for name in list {
            assert!(
                self.has(name),
                "{name} is missing: run `apt-get install {name}`"
            );
        }
        let base = self
            .packages
            .iter()
            .filter(|(_, entry)| entry.base)
            .map(|(name, _)| name);
        let mut waiting: Vec<&String> = base.chain(list).collect();
        let mut found = BTreeSet::new();
        while let Some(name) = waiting.pop() {
            if found.insert(name.clone()) {
                waiting.extend(
                    self.packages[name]
                        .dependencies
                        .iter()
                        .filter_map(|need| self.choose(need)),
                );
            }
        }
        found
    }

    /// Chooses a package for one of these names: the first possible one, as apt would choose.
    fn choose<'a>(&'a self, need: &'a [String]) -> Option<&'a String> {
        let real = need.iter().find(|name| self.packages.contains_key(*name));
        real.or_else(|| {
            need.iter()
                .find_map(|name| self.provided.get(name)?.first())
        })
    }
}

/// The list of packages of a script: what it sets `packages` to.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn packages_of_script(script: &Path) -> Vec<String> {
    packages_of_list(script, "packages")
}

/// A list of packages of a script, by the name of its variable.
///
/// # Panics
/// If it has none of this name.
#[must_use]
pub fn packages_of_list(script: &Path, name: &str) -> Vec<String> {
    let text =
        fs::read_to_string(script).unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    let list = text
        .split_once(&format!("\n{name}=(\n"))
        .and_then(|(_, rest)| rest.split_once("\n)"));
    let (list, _) = list.unwrap_or_else(|| panic!("{} has no list {name}", script.display()));
    let words = list.lines().flat_map(|line| {
        line.split('#')
            .next()
            .unwrap_or_default()
            .split_whitespace()
    });
    words.map(str::to_owned).collect()
}

/// The name in a relation such as `libc6:any (>= 2.36)`.
fn package_name(relation: &str) -> Option<String> {
    let name = relation
        .split(['(', '['])
        .next()?
        .trim()
        .split(':')
        .next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn dpkg(args: &[&str]) -> String {
    let output = Command::new("dpkg-query")
        .args(args)
        .output()
        .expect("the tests run on Debian");
    assert!(
        output.status.success(),
        "dpkg-query: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

// === impl Alternative ===

impl Alternative {
    /// Reads a file of dpkg's: how it is chosen; the link; a name and a link for each that goes with it; an
    /// empty line; for each candidate its path, its priority, and what goes with it.
    fn parse(name: &str, text: &str) -> Self {
        let mut lines = text.lines().skip(1);
        let mut links = vec![(
            name.to_owned(),
            PathBuf::from(lines.next().unwrap_or_default()),
        )];
        while let Some(name) = lines.next().filter(|name| !name.is_empty()) {
            links.push((
                name.to_owned(),
                PathBuf::from(lines.next().unwrap_or_default()),
            ));
        }
        let mut candidates = Vec::new();
        while let Some(path) = lines.next().filter(|path| !path.is_empty()) {
            let _priority = lines.next();
            let others = lines.by_ref().take(links.len() - 1).map(PathBuf::from);
            candidates.push(std::iter::once(PathBuf::from(path)).chain(others).collect());
        }
        Self { links, candidates }
    }
}

// === impl FreshDebian ===

impl FreshDebian<'_> {
    /// Returns whether it has this package.
    #[must_use]
    pub fn has_package(&self, name: &str) -> bool {
        self.packages.contains(name)
    }

    /// Returns whether it has a program of this name, or at this path.
    #[must_use]
    pub fn has_program(&self, program: &str) -> bool {
        if program.starts_with('/') {
            return self.has_file(Path::new(program));
        }
        PROGRAMS
            .iter()
            .any(|dir| self.has_file(&Path::new(dir).join(program)))
    }

    fn has_file(&self, path: &Path) -> bool {
        let real = path
            .parent()
            .and_then(|dir| Some(dir.canonicalize().ok()?.join(path.file_name()?)));
        real.is_some_and(|real| self.files.contains(&real))
            || self
                .chosen_alternatives()
                .any(|(_, link, target)| link == path && !target.as_os_str().is_empty())
    }

    /// Its entries in `/etc/alternatives`, with the links to them and their targets.
    fn chosen_alternatives(&self) -> impl Iterator<Item = (&String, &PathBuf, &PathBuf)> {
        self.database.alternatives.iter().flat_map(|alternative| {
            let mut candidates = alternative.candidates.iter();
            let chosen = candidates.find(|paths| {
                paths
                    .first()
                    .and_then(|path| path.canonicalize().ok())
                    .is_some_and(|path| self.files.contains(&path))
            });
            let behind = chosen.map(Vec::as_slice).unwrap_or_default();
            alternative
                .links
                .iter()
                .zip(behind)
                .map(|((name, link), target)| (name, link, target))
        })
    }

    /// Makes its root in an empty directory, of this machine's own files: nobody may write there.
    ///
    /// # Errors
    /// The directory cannot be written, or a file of the machine not be read.
    pub fn make(&self, root: &Path) -> io::Result<()> {
        for path in &self.files {
            let target = below(root, path);
            // Machines leave out documentation, and directories may be links to others.
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            make_parent(&target)?;
            if meta.is_symlink() {
                symlink(path.read_link()?, &target)?;
            } else if meta.is_dir() {
                fs::create_dir_all(&target)?;
                fs::set_permissions(&target, meta.permissions())?;
            } else if fs::hard_link(path, &target).is_err() {
                fs::copy(path, &target)?;
            }
        }
        let alternatives = root.join("etc/alternatives");
        for (name, link, target) in self
            .chosen_alternatives()
            .filter(|(_, _, target)| !target.as_os_str().is_empty())
        {
            link_once(target, &alternatives.join(name))?;
            link_once(
                &Path::new("/etc/alternatives").join(name),
                &below(root, link),
            )?;
        }
        // Made by the scripts of packages.
        for file in ["/etc/passwd", "/etc/group"] {
            let target = below(root, Path::new(file));
            // Never through a link to the machine's own.
            assert!(!target.exists(), "{file} is no package's");
            fs::copy(file, &target)?;
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))
    }
}

/// Returns the path in a root that corresponds to a path of the machine.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").expect("dpkg names whole paths"))
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn link_once(target: &Path, link: &Path) -> io::Result<()> {
    make_parent(link)?;
    match symlink(target, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// A command that runs a program in such a root, which it cannot write. It sees these directories of the
/// machine at their own paths, and may write there.
#[must_use]
pub fn enter(root: &Path, dirs: &[&Path], program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            ENTER,
            "sh",
        ])
        .arg(root)
        .args(dirs);
    command.arg("--").arg(program);
    command.env_clear().env("PATH", PROGRAMS.join(":"));
    command
}
