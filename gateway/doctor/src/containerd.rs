//! Checks of containerd, of the OCI runtimes and of the shims.

use std::io;
use std::path::{Path, PathBuf};

use switchyard_config::ContainerdMode;
use switchyard_containerd::advisories::{advisories, parse_version_output};
use switchyard_linux::files::if_present;
use switchyard_linux::packages::Needed;
use switchyard_operator_api::AdvisoryView;
use toml::{Table, Value};

use super::codes::runtime::{
    CONTAINERD_CONFIG, CRI_PLUGIN, NO_CONTAINERD, NO_CONTAINERD_PROGRAM, NO_RUNTIME, NO_SHIM,
    OLD_CONTAINERD, VULNERABLE,
};
use super::facts::{Facts, seen_by};
use super::finding::{Finding, Severity};
use super::view::ProcessFacts;

/// The namespace of containerd's own CRI plugin.
const CRI_NAMESPACE: &str = "k8s.io";

/// The names of that plugin in `disabled_plugins`, of all versions of the file.
const CRI_PLUGINS: [&str; 3] = [
    "cri",
    "io.containerd.grpc.v1.cri",
    "io.containerd.cri.v1.runtime",
];

/// The shim of runc and of runtimes with the same options.
const RUNC_SHIM: &str = "io.containerd.runc.v2";

/// The address of a containerd whose configuration has none.
const DEFAULT_ADDRESS: &str = "/run/containerd/containerd.sock";

/// The root directory of a containerd whose configuration has none.
const DEFAULT_ROOT: &str = "/var/lib/containerd";

/// Maximum number of imported files that are read.
const IMPORTS_MAX: usize = 32;

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(socket(facts));
    match facts.config.containerd.mode {
        ContainerdMode::External => found.extend(cri_plugin(facts)),
        ContainerdMode::Managed => found.extend(program(facts)),
    }
    found.extend(runtimes(facts));
    found.extend(shims(facts));
    found.extend(vulnerable(facts));
    found
}

fn socket(facts: &Facts) -> Option<Finding> {
    let path = facts.config.containerd_socket();
    let is_external = facts.config.containerd.mode == ContainerdMode::External;
    let why = match facts.view.connect(&path).map_err(|error| error.kind()) {
        Err(io::ErrorKind::ConnectionRefused) => "the file is there, but nobody listens",
        // The daemon starts a managed one, and reports it.
        Err(io::ErrorKind::NotFound) if is_external => "there is no such file",
        _ => return None,
    };
    let found = Finding::new(&NO_CONTAINERD, format!("{}: {why}", path.display()));
    Some(if is_external {
        found.command_if(facts.service_command("status", "containerd"))
    } else {
        found
    })
}

/// The CRI plugin of an external containerd, if it uses our namespace.
fn cri_plugin(facts: &Facts) -> Option<Finding> {
    if facts.config.containerd.namespace != CRI_NAMESPACE {
        return None;
    }
    let file = config_file(facts);
    let text = match if_present(facts.view.read(&file, super::view::FILE_MAX)) {
        // Without a file, all plugins are enabled.
        Ok(bytes) => String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned(),
        Err(error) => {
            return Some(Finding::new(
                &CONTAINERD_CONFIG,
                format!("{}: {error}", file.display()),
            ));
        }
    };
    let Ok(table) = text.parse::<Table>() else {
        return Some(Finding::new(
            &CONTAINERD_CONFIG,
            format!("{} is not TOML", file.display()),
        ));
    };
    let is_disabled = with_imports(facts, table, &file).iter().any(disables_cri);
    (!is_disabled).then(|| {
        let found = format!(
            "{}: disabled_plugins does not name the CRI plugin, and containerd.namespace is {CRI_NAMESPACE:?}",
            file.display()
        );
        Finding::new(&CRI_PLUGIN, found)
    })
}

/// The processes of the external containerd that are told their address: one that is named is ours, or not.
fn processes_at<'f>(
    facts: &'f Facts,
    address: &'f Path,
) -> impl Iterator<Item = (&'f ProcessFacts, Option<bool>)> {
    facts.running("containerd").map(move |process| {
        let named = [process.values("address"), process.values("a")].concat();
        let is_ours = named.iter().any(|named| Path::new(named) == address);
        (process, (!named.is_empty()).then_some(is_ours))
    })
}

/// The configuration file of the external containerd: that of a process which listens on its socket, else the
/// default.
fn config_file(facts: &Facts) -> PathBuf {
    let address = &facts.config.containerd.address;
    let listens_there = |file: &PathBuf| {
        let table = facts
            .view
            .text(file)
            .and_then(|text| text.parse::<Table>().ok());
        let named = table
            .as_ref()
            .and_then(|table| table.get("grpc")?.get("address")?.as_str());
        Path::new(named.unwrap_or(DEFAULT_ADDRESS)) == address
    };
    let files = processes_at(facts, address).flat_map(|(process, is_ours)| {
        let files = [process.values("config"), process.values("c")].concat();
        let files = files.into_iter().map(Path::new);
        let found = files.filter_map(move |file| seen_by(&*facts.view, process, file).ok());
        found.filter(move |file| is_ours.unwrap_or_else(|| listens_there(file)))
    });
    files
        .into_iter()
        .next()
        .unwrap_or_else(|| "/etc/containerd/config.toml".into())
}

/// The directory of the external containerd's content, as it has told the daemon; while that is not known, its root directory by the
/// process that listens on its socket, or by its configuration.
pub(super) fn external_root(facts: &Facts) -> PathBuf {
    let status = facts.status.as_ref().ok();
    if let Some(root) = status.and_then(|status| status.facts.get("containerd.content")) {
        return root.into();
    }
    let address = &facts.config.containerd.address;
    let by_flag = processes_at(facts, address)
        .filter(|(_, is_ours)| *is_ours == Some(true))
        .find_map(|(process, _)| Some(PathBuf::from(*process.values("root").first()?)));
    if let Some(root) = by_flag {
        return root;
    }
    let file = config_file(facts);
    let text = facts.view.text(&file);
    let table = text.and_then(|text| text.parse::<Table>().ok());
    let tables = with_imports(facts, table.unwrap_or_default(), &file);
    let root_of = |table: &Table| Some(PathBuf::from(table.get("root")?.as_str()?));
    let root = tables.iter().rev().find_map(root_of);
    root.unwrap_or_else(|| DEFAULT_ROOT.into())
}

/// The configuration in this file, and after it those that it imports, which take precedence.
fn with_imports(facts: &Facts, table: Table, file: &Path) -> Vec<Table> {
    let imported = imports(&table, file).into_iter().filter_map(|path| {
        let text = facts.view.text(path)?;
        text.parse::<Table>().ok()
    });
    let imported: Vec<Table> = imported.collect();
    std::iter::once(table).chain(imported).collect()
}

fn imports(table: &Table, file: &Path) -> Vec<PathBuf> {
    let listed = table.get("imports").and_then(Value::as_array);
    let dir = file.parent().unwrap_or(Path::new("/"));
    let paths = listed
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|path| dir.join(path));
    paths.take(IMPORTS_MAX).collect()
}

fn disables_cri(table: &Table) -> bool {
    let listed = table.get("disabled_plugins").and_then(Value::as_array);
    listed
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .any(|name| CRI_PLUGINS.contains(&name))
}

fn program(facts: &Facts) -> Option<Finding> {
    let binary = &facts.config.containerd.binary;
    if facts.program(binary).is_none() {
        let dirs = super::text::listed(&facts.program_dirs);
        let found = format!("{binary} is in none of {dirs}");
        return Some(
            Finding::new(&NO_CONTAINERD_PROGRAM, found)
                .command_if(facts.install_command(Needed::Containerd)),
        );
    }
    let version = containerd_version(facts)?;
    let mut numbers = version
        .trim_start_matches('v')
        .split('.')
        .map(|number| number.parse::<u32>().ok());
    let major = numbers.next()??;
    let minor = numbers.next()??;
    ((major, minor) < (1, 6)).then(|| Finding::new(&OLD_CONTAINERD, format!("{binary} {version}")))
}

/// The third word of `containerd --version`, as in `containerd github.com/containerd/containerd v1.7.2 abc`.
fn containerd_version(facts: &Facts) -> Option<String> {
    let text = facts.output(&facts.config.containerd.binary, &["--version"])?;
    text.split_whitespace()
        .nth(2)
        .filter(|version| version.len() <= 100)
        .map(str::to_owned)
}

fn severity_of(facts: &Facts, handler: &str) -> Severity {
    if handler == facts.config.containerd.default_runtime {
        Severity::Error
    } else {
        Severity::Note
    }
}

fn runtimes(facts: &Facts) -> Vec<Finding> {
    let configured = &facts.config.containerd.runtimes;
    let missing = configured.iter().filter(|(_, runtime)| {
        runtime.type_ == RUNC_SHIM && facts.program(&runtime.binary).is_none()
    });
    missing
        .map(|(handler, runtime)| {
            let found = format!(
                "runtime handler {handler:?}: {} is not installed",
                runtime.binary
            );
            Finding::new(&NO_RUNTIME, found).severity(severity_of(facts, handler))
        })
        .collect()
}

fn shims(facts: &Facts) -> Vec<Finding> {
    let configured = &facts.config.containerd.runtimes;
    let missing = configured.iter().filter_map(|(handler, runtime)| {
        let shim = shim_of(&runtime.type_)?;
        facts.program(&shim).is_none().then(|| {
            let found = format!("runtime handler {handler:?}: {shim} is not installed");
            Finding::new(&NO_SHIM, found).severity(severity_of(facts, handler))
        })
    });
    missing.collect()
}

/// The program of a runtime type, by containerd's rule: `io.containerd.runc.v2` is `containerd-shim-runc-v2`.
fn shim_of(runtime_type: &str) -> Option<String> {
    if runtime_type.starts_with('/') {
        return Some(runtime_type.to_owned());
    }
    let mut parts = runtime_type.rsplit('.');
    let version = parts.next()?;
    let name = parts.next()?;
    Some(format!("containerd-shim-{name}-{version}"))
}

/// Programs with known vulnerabilities: those that the daemon reports, or while it is down, those of the
/// installed versions.
fn vulnerable(facts: &Facts) -> Vec<Finding> {
    let listed = match &facts.status {
        Ok(status) => status.advisories.clone(),
        Err(_) => {
            let mut programs: Vec<_> = facts
                .config
                .containerd
                .runtimes
                .values()
                .filter(|runtime| runtime.type_ == RUNC_SHIM)
                .filter_map(|runtime| {
                    parse_version_output(&facts.output(&runtime.binary, &["--version"])?)
                })
                .collect();
            programs.extend(
                containerd_version(facts).map(|version| ("containerd".to_owned(), version)),
            );
            let ignore = &facts.config.advisories.ignore;
            advisories(programs, ignore)
                .into_iter()
                .map(AdvisoryView::from)
                .collect()
        }
    };
    let finding = |advisory: &AdvisoryView| {
        let AdvisoryView {
            program,
            version,
            ids,
        } = advisory;
        Finding::new(
            &VULNERABLE,
            format!("{program} {version}: {}", ids.join(", ")),
        )
    };
    listed.iter().map(finding).collect()
}
