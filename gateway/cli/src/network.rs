//! `switchyard network`: the tables of nf_tables by which containers on bridges of the gateway are connected, and the rules in iptables that
//! accept what these bridges forward. Works without a daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use switchyard_config as config;
use switchyard_linux::report;
use switchyard_network::iptables::{FilterChange, IptablesError, remove_accepts};
use switchyard_network::nft::{Element, FoundTable, NftFamily, NftTables, TableName, TableSet};

use super::attachments::NativeSandboxes;
use super::error::CliError;
use crate::admin_socket;
use crate::output::{Format, print, print_error, print_json, table};
use crate::package::configurations;
use crate::sources::file_sources;

mod error;
#[cfg(test)]
mod tests;

pub(super) use error::NetworkError;

#[derive(Debug, Subcommand)]
pub(super) enum NetworkCommand {
    /// Show the tables of nf_tables that daemons have made in this network namespace: whether others have changed them, how much is in them,
    /// and the published ports.
    Show(NodeArgs),
    /// Remove these tables, and the rules in FORWARD of iptables that accept what these bridges forward. That is for a node which goes back to
    /// CNI plugins, to an earlier version, or is left: until then they stay, also without a daemon. Refused while a container needs them, or
    /// a daemon runs that would make them again.
    Clear(ClearArgs),
}

/// The node, and the output format.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    /// The configuration file; that of the running daemon, or /etc/switchyard/config.toml.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The daemon's admin socket; that of the running daemon, or else the configured one.
    #[arg(long, value_name = "PATH", env = "SWITCHYARD_ADMIN_SOCKET")]
    socket: Option<PathBuf>,
    /// Text or JSON.
    #[arg(long, short, value_enum, default_value_t)]
    output: Format,
}

#[derive(Debug, Args)]
pub(super) struct ClearArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Remove them although containers need them: these then reach nothing beyond the node, and their published ports lead nowhere.
    #[arg(long)]
    force: bool,
}

/// The tables, and the sandboxes that need them.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct TablesView {
    tables: Vec<TableView>,
    /// The ids of the sandboxes whose network was made without CNI plugins.
    sandboxes: BTreeSet<String>,
}

/// A table that was found, and what is shown of it.
struct ReadTable {
    family: NftFamily,
    name: TableName,
    view: TableView,
}

/// A table.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct TableView {
    family: &'static str,
    name: String,
    /// True if its sets, chains and rules are those that the daemon makes.
    intact: bool,
    /// The number of elements of each set and map that the table has.
    elements: BTreeMap<&'static str, usize>,
    ports: BTreeSet<TablePort>,
}

/// A published port.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct TablePort {
    port: u16,
    protocol: &'static str,
    /// The address of the node; all of the table's family without it.
    address: Option<IpAddr>,
    to: IpAddr,
    to_port: u16,
}

/// Result of removing the rules of daemons in iptables.
#[derive(Default)]
struct RemovedRules {
    /// Number of rules that each program removed.
    counts: BTreeMap<&'static str, usize>,
    /// Reasons why rules are left.
    left: Vec<String>,
    /// The same of filters that no program of iptables can read.
    unreadable: Vec<String>,
}

/// Shows or removes the tables.
pub(super) fn network(command: &NetworkCommand) -> Result<(), CliError> {
    match command {
        NetworkCommand::Show(args) => show(args),
        NetworkCommand::Clear(args) => clear(args),
    }
}

fn show(args: &NodeArgs) -> Result<(), CliError> {
    let tables = read_tables()?.into_iter().map(|table| table.view);
    let tables = tables.collect();
    let found = args.sandboxes(&args.socket())?;
    for why in &found.unknown {
        print_error(format!("switchyard: {why}\n"))?;
    }
    let view = TablesView {
        tables,
        sandboxes: found.ids,
    };
    match args.output {
        Format::Text => print(shown(&view))?,
        Format::Json => print_json(&view)?,
    }
    Ok(())
}

/// Removes the rules and the tables; what cannot be removed keeps nothing else from it. A container that a daemon connects after the look at the
/// node loses them too, until the daemon makes them again, as after any removal by others.
fn clear(args: &ClearArgs) -> Result<(), CliError> {
    let ClearArgs { node, force } = args;
    let found = read_tables()?;
    let socket = node.socket();
    let native = switchyard_doctor::config_in_force(&socket)
        .is_some_and(|config| config.network.bridge.is_native());
    let sandboxes = node.sandboxes(&socket)?;
    let views: Vec<&TableView> = found.iter().map(|table| &table.view).collect();
    let daemon = native.then_some(socket.as_path());
    if let Some(why) = refusal(&views, &sandboxes, daemon, *force) {
        return Err(why.into());
    }
    // Before the tables, whose elements these rules are for.
    let RemovedRules {
        counts: rules,
        mut left,
        unreadable,
    } = remove_rules();
    // Else no daemon of here has made any: what iptables cannot read, as a filter of nftables of the operator, is no concern.
    if !found.is_empty() || !rules.is_empty() {
        left.extend(unreadable);
    }
    let mut tables = Vec::new();
    for ReadTable { family, name, .. } in found {
        match remove(family, name.clone()) {
            Ok(()) => tables.push((family.name(), name)),
            Err(error) => left.push(report(&error)),
        }
    }
    match node.output {
        Format::Text => print(removed_text(&rules, &tables))?,
        Format::Json => {
            let tables = tables.iter().map(
                |(family, name)| serde_json::json!({ "family": family, "name": name.as_str() }),
            );
            let removed: Vec<_> = tables.collect();
            print_json(&serde_json::json!({ "removed": removed, "rules": rules }))?;
        }
    }
    if left.is_empty() {
        Ok(())
    } else {
        Err(NetworkError::Left(left.join("; ")).into())
    }
}

/// Removes the rules of daemons in iptables.
fn remove_rules() -> RemovedRules {
    let mut done = RemovedRules::default();
    for change in remove_accepts() {
        match change {
            Ok(FilterChange {
                program,
                added: _,
                removed,
            }) => {
                done.counts.insert(program, removed);
            }
            Err(error) => {
                let why = format!(
                    "{}: look for rules with the comment switchyard by iptables -S FORWARD, and remove them by hand",
                    report(&error)
                );
                if matches!(error, IptablesError::Unreadable { .. }) {
                    done.unreadable.push(why);
                } else {
                    done.left.push(why);
                }
            }
        }
    }
    done
}

fn removed_text(
    rules: &BTreeMap<&'static str, usize>,
    tables: &[(&'static str, TableName)],
) -> String {
    let rules = rules.iter();
    let rules = rules.map(|(program, count)| format!("removed {count} rules of {program}\n"));
    let tables = tables.iter();
    let tables = tables.map(|(family, name)| format!("removed table {family} {}\n", name.as_str()));
    rules.chain(tables).collect()
}

fn remove(family: NftFamily, name: TableName) -> Result<(), NetworkError> {
    Ok(NftTables::open(name)?.remove(family)?)
}

/// Reads the tables of all daemons. Blocks.
fn read_tables() -> Result<Vec<ReadTable>, NetworkError> {
    let mut read = Vec::new();
    for (family, name) in NftTables::list()? {
        // One that is gone by now is none.
        if let Some(found) = NftTables::open(name.clone())?.read(family)? {
            let view = TableView::of(family, &name, &found);
            read.push(ReadTable { family, name, view });
        }
    }
    Ok(read)
}

/// Returns the reason why tables and rules must not be removed; `None` if they may. Tables may be missing for a moment, when others have
/// flushed them: the rules in iptables, which stay then, are needed all the same. What is forced ends containers' networks, but a daemon
/// would make the tables again all the same. Pure.
fn refusal(
    tables: &[&TableView],
    sandboxes: &NativeSandboxes,
    daemon: Option<&Path>,
    force: bool,
) -> Option<NetworkError> {
    if let Some(socket) = daemon {
        return Some(NetworkError::Daemon(socket.to_owned()));
    }
    if force {
        return None;
    }
    if let Some(which) = sandboxes.text() {
        return Some(NetworkError::Sandboxes(which));
    }
    let used = tables.iter().find(|table| table.is_used())?;
    Some(NetworkError::Ports {
        family: used.family,
        name: used.name.clone(),
        ports: used.ports.len(),
        hairpins: used.count(TableSet::Hairpins),
    })
}

fn shown(view: &TablesView) -> String {
    let TablesView { tables, sandboxes } = view;
    if tables.is_empty() {
        return "no daemon has made a table in this network namespace\n".to_owned();
    }
    let rows: Vec<_> = tables.iter().map(TableView::row).collect();
    let mut text = table(["TABLE", "RULES", "ELEMENTS"], &rows);
    let ports: Vec<_> = tables
        .iter()
        .flat_map(|table| table.ports.iter().map(move |port| port.row(table)))
        .collect();
    if !ports.is_empty() {
        let headings = ["PORT", "PROTOCOL", "ADDRESS", "LEADS TO", "TABLE"];
        text.push_str(&format!("\n{}", table(headings, &ports)));
    }
    text.push_str(&format!(
        "\nsandboxes whose network was made without CNI plugins: {}\n",
        sandboxes.len()
    ));
    text
}

// === impl NodeArgs ===

impl NodeArgs {
    fn socket(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(|| admin_socket::find(&file_sources(self.config.clone())))
    }

    /// The sandboxes that need the tables, of the daemon at this socket.
    fn sandboxes(&self, socket: &Path) -> Result<NativeSandboxes, CliError> {
        let configurations: Vec<config::Config> = match self.config {
            Some(_) => {
                let given = config::load_for_start(&file_sources(self.config.clone()))?;
                let in_force = switchyard_doctor::config_in_force(socket);
                in_force
                    .into_iter()
                    .chain([given.effective.config])
                    .collect()
            }
            None => configurations(socket)?,
        };
        Ok(NativeSandboxes::of(&configurations))
    }
}

// === impl TableView ===

impl TableView {
    fn of(family: NftFamily, name: &TableName, found: &FoundTable) -> Self {
        Self::new(family, name, found.is_intact(family), found.elements())
    }

    fn new(family: NftFamily, name: &TableName, intact: bool, found: &BTreeSet<Element>) -> Self {
        let sets = TableSet::of(family).map(|set| (set.name(), 0_usize));
        let mut elements: BTreeMap<_, _> = sets.collect();
        for element in found {
            *elements.entry(element.set().name()).or_default() += 1;
        }
        Self {
            family: family.name(),
            name: name.as_str().to_owned(),
            intact,
            elements,
            ports: found.iter().filter_map(TablePort::of).collect(),
        }
    }

    fn count(&self, set: TableSet) -> usize {
        self.elements.get(set.name()).copied().unwrap_or_default()
    }

    /// Returns whether a container has a port in it.
    fn is_used(&self) -> bool {
        !self.ports.is_empty() || self.count(TableSet::Hairpins) > 0
    }

    fn row(&self) -> [String; 3] {
        let rules = if self.intact {
            "intact"
        } else {
            "changed by others"
        };
        let counts: Vec<_> = TableSet::ALL
            .into_iter()
            .map(|set| (set.name(), self.count(set)))
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let counts = if counts.is_empty() {
            "-".to_owned()
        } else {
            counts.join(", ")
        };
        [self.title(), rules.to_owned(), counts]
    }

    fn title(&self) -> String {
        format!("{} {}", self.family, self.name)
    }
}

// === impl TablePort ===

impl TablePort {
    fn of(element: &Element) -> Option<Self> {
        match element {
            Element::Port {
                at,
                protocol,
                port,
                to,
                to_port,
            } => Some(Self {
                port: *port,
                protocol: protocol.name(),
                address: *at,
                to: *to,
                to_port: *to_port,
            }),
            Element::Hairpin(_)
            | Element::Masqueraded(_)
            | Element::Closed(_)
            | Element::Bridge(_)
            | Element::Same(_)
            | Element::Apart(_)
            | Element::Allowed(..)
            | Element::PinnedPort(_)
            | Element::PinnedMac(..)
            | Element::PinnedAddress(..) => None,
        }
    }

    fn row(&self, table: &TableView) -> [String; 5] {
        let address = self
            .address
            .map_or_else(|| "*".to_owned(), |address| address.to_string());
        [
            self.port.to_string(),
            self.protocol.to_owned(),
            address,
            SocketAddr::new(self.to, self.to_port).to_string(),
            table.title(),
        ]
    }
}
