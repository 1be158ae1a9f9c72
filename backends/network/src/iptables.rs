//! The only rules of ours in chains of others: they accept what a bridge forwards where the policy of FORWARD of iptables is DROP.
//!
//! ```text
//! filters that the kernel has ──`-S FORWARD`──> plan ──one `restore --noflush`──> rules of each bridge at the end of FORWARD, or none
//! ```
//!
//! An accept of nf_tables undoes no drop of iptables, so the rules are added by the node's own program, of the variant that has the chain. They
//! are at the end of FORWARD, where only its policy follows: what others drop by their rules stays dropped. Only what a bridge sends with
//! addresses of its subnets, answers, connections to published ports, and what stays on the bridge are accepted; of a bridge that is no
//! gateway only the last.
//!
//! A rule of ours is known by its comment, which is the name of the tables of its instance of the daemon. All follows from one list of the chain,
//! and a filter is changed by one run, all of it or nothing. What others change in between is mended by the next look.
//!
//! Invariants:
//! - A filter that the kernel does not have yet is not made, and no module is loaded for a look.
//! - No rule without such a comment is changed, and none of another instance.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use thiserror::Error;

use crate::netlink::NetlinkError;
use crate::nft::{BridgeRules, NftError, NftFamily, TableName, has_iptables_forward};

const CHAIN: &str = "FORWARD";
/// Limit of the time that a program waits for others to let go of the lock of the filter, in seconds.
const LOCK_SECONDS: &str = "5";
/// Limit for one run of a program.
const LIMIT: Duration = Duration::from_secs(15);
/// The pause between two looks whether a program has ended.
const PAUSE: Duration = Duration::from_millis(2);
/// The most of an output that is read, in bytes.
const OUTPUT_MAX: u64 = 16 << 20;
/// The most of an error of a program that is repeated, in characters.
const ERROR_MAX: usize = 300;
/// The status of a program that could not get the lock of the filter, or memory.
const NO_RESOURCE: i32 = 4;

/// One of the filters of a network namespace that iptables fills: there is one for each family and variant, and a packet has to pass all.
#[derive(Debug)]
struct PacketFilter {
    family: NftFamily,
    /// True if it is of the variant without nf_tables.
    is_legacy: bool,
    /// The program of this variant, and the one that may be of either.
    programs: [&'static str; 2],
}

const FILTERS: [PacketFilter; 4] = [
    PacketFilter {
        family: NftFamily::Ip4,
        is_legacy: false,
        programs: ["iptables-nft", "iptables"],
    },
    PacketFilter {
        family: NftFamily::Ip4,
        is_legacy: true,
        programs: ["iptables-legacy", "iptables"],
    },
    PacketFilter {
        family: NftFamily::Ip6,
        is_legacy: false,
        programs: ["ip6tables-nft", "ip6tables"],
    },
    PacketFilter {
        family: NftFamily::Ip6,
        is_legacy: true,
        programs: ["ip6tables-legacy", "ip6tables"],
    },
];

/// Changes that were made in a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterChange {
    /// The program that did it.
    pub program: &'static str,
    /// Number of rules that were added.
    pub added: usize,
    /// Number of those that were removed: they were not needed any more, not at the end, or there twice.
    pub removed: usize,
}

/// Reason why a filter could not be looked at or changed.
#[derive(Debug, Error)]
pub enum IptablesError {
    /// It is not known whether the kernel has the filter.
    #[error(transparent)]
    Rules(#[from] NftError),
    /// It is not known which devices are bridges.
    #[error(transparent)]
    Links(#[from] NetlinkError),
    /// It is not known whether the kernel has the filter of the older variant.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The list of the kernel.
        path: PathBuf,
        /// Reason why it cannot be read.
        source: io::Error,
    },
    /// A program could not be run.
    #[error("cannot run {command:?}")]
    Run {
        /// The command.
        command: String,
        /// Reason why it cannot be run.
        source: io::Error,
    },
    /// A program did not end in time, and was killed.
    #[error(
        "{command:?} has not ended within {limit:?}: look which program has the lock of the filter"
    )]
    Late {
        /// The command.
        command: String,
        /// The limit.
        limit: Duration,
    },
    /// A program refused.
    #[error("{command:?} failed: {text:?}")]
    Failed {
        /// The command.
        command: String,
        /// Its status, unless it was killed.
        code: Option<i32>,
        /// Text that it printed.
        text: String,
    },
    /// A program cannot read a filter: others have filled it by other means, with what no rule of the program is like.
    #[error("{command:?} cannot read the filter: {text:?}")]
    Unreadable {
        /// The command.
        command: String,
        /// Text that it printed.
        text: String,
    },
}

/// Changes that are to be made in a chain: rules as `-S` prints them, behind the chain's name.
#[derive(Debug, Default, PartialEq, Eq)]
struct ChainPlan {
    add: Vec<String>,
    /// Afterwards. The first rule with these words is meant.
    remove: Vec<String>,
}

/// Makes what the bridges of an instance of the daemon forward pass the filters whose policy drops it, each in the families of its subnets, and
/// removes what the instance has added beside that. Returns what was changed or failed. Idempotent. Blocks.
#[must_use = "a failure is to be told"]
pub fn accept_forwarded(
    table: &TableName,
    bridges: &[BridgeRules],
) -> Vec<Result<FilterChange, IptablesError>> {
    let settled = FILTERS
        .iter()
        .map(|filter| filter.settle(Some(table), bridges));
    settled.filter_map(Result::transpose).collect()
}

/// Removes all that [`accept_forwarded`] has added, for whichever instance. Returns what was removed or failed. Idempotent. Blocks.
#[must_use = "a failure is to be told"]
pub fn remove_accepts() -> Vec<Result<FilterChange, IptablesError>> {
    let settled = FILTERS.iter().map(|filter| filter.settle(None, &[]));
    settled.filter_map(Result::transpose).collect()
}

/// The conditions of the rules that accept what a bridge forwards, as a program of iptables takes them: for what stays on the bridge, as the
/// kernel shows it to filters with br_netfilter; and if it is a gateway, for what comes from its containers, whose subnets have their prefixes
/// also in the text of a single address, and for what may go to them. Pure.
#[must_use]
pub fn accept_conditions(
    bridge: &str,
    subnets: impl IntoIterator<Item = String>,
    is_gateway: bool,
) -> Vec<String> {
    let mut conditions = vec![format!("-i {bridge} -o {bridge}")];
    if is_gateway {
        let from = subnets.into_iter();
        conditions.extend(from.map(|subnet| format!("-s {subnet} -i {bridge}")));
        conditions.push(format!(
            "-o {bridge} -m conntrack --ctstate RELATED,ESTABLISHED,DNAT"
        ));
    }
    conditions
}

// === impl PacketFilter ===

impl PacketFilter {
    /// Makes the rules of an instance those for these bridges, or removes those of all instances. Returns what was changed, if anything was.
    fn settle(
        &self,
        table: Option<&TableName>,
        bridges: &[BridgeRules],
    ) -> Result<Option<FilterChange>, IptablesError> {
        if !self.exists()? {
            return Ok(None);
        }
        let Some(program) = self.program()? else {
            return Ok(None);
        };
        let listed = called(program, &["-w", LOCK_SECONDS, "-S", CHAIN], "");
        let listed = listed.map_err(IptablesError::of_list)?;
        let table = table.map(TableName::as_str);
        let wanted: Vec<String> = match table {
            Some(table) => bridges
                .iter()
                .flat_map(|bridge| accepts(table, bridge, self.family))
                .collect(),
            None => Vec::new(),
        };
        let plan = plan(&listed, table, &wanted);
        if plan == ChainPlan::default() {
            return Ok(None);
        }
        let restore = format!("{program}-restore");
        called(
            &restore,
            &["--noflush", "-w", LOCK_SECONDS],
            &plan.to_string(),
        )?;
        Ok(Some(FilterChange {
            program,
            added: plan.add.len(),
            removed: plan.remove.len(),
        }))
    }

    /// Returns whether the kernel has it, in the network namespace of this thread.
    fn exists(&self) -> Result<bool, IptablesError> {
        if !self.is_legacy {
            return Ok(has_iptables_forward(self.family)?);
        }
        let list = match self.family {
            NftFamily::Ip4 => "ip_tables_names",
            NftFamily::Ip6 => "ip6_tables_names",
            // It has a program of its own, and no chain of what is routed.
            NftFamily::Bridge => return Ok(false),
        };
        let path = Path::new("/proc/thread-self/net").join(list);
        match fs::read_to_string(&path) {
            Ok(tables) => Ok(tables.lines().any(|table| table == "filter")),
            Err(fault) if fault.kind() == ErrorKind::NotFound => Ok(false),
            Err(source) => Err(IptablesError::Read { path, source }),
        }
    }

    /// The program of this variant; `None` if the node has none.
    fn program(&self) -> Result<Option<&'static str>, IptablesError> {
        for program in self.programs {
            let version = call(program, &["--version"], "")?;
            if version.is_some_and(|version| version.contains("nf_tables") != self.is_legacy) {
                return Ok(Some(program));
            }
        }
        Ok(None)
    }
}

// === impl IptablesError ===

impl IptablesError {
    /// The same of a program that was to list a filter.
    fn of_list(self) -> Self {
        if let Self::Failed {
            command,
            code: Some(code),
            text,
        } = &self
            && *code != NO_RESOURCE
        {
            return Self::Unreadable {
                command: command.clone(),
                text: text.clone(),
            };
        }
        self
    }
}

// === impl FilterChange ===

impl fmt::Display for FilterChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            program,
            added,
            removed,
        } = self;
        write!(
            f,
            "{program}: {added} rules were added at the end of {CHAIN}, {removed} removed"
        )
    }
}

// === impl ChainPlan ===

impl fmt::Display for ChainPlan {
    /// As the programs that restore filters read it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { add, remove } = self;
        writeln!(f, "*filter")?;
        for (option, rules) in [("-A", add), ("-D", remove)] {
            for rule in rules {
                writeln!(f, "{option} {CHAIN} {rule}")?;
            }
        }
        writeln!(f, "COMMIT")
    }
}

/// Decides what makes the rules of an instance, or of all instances, the wanted ones. `listed` is the chain as `-S` prints it. Pure.
fn plan(listed: &str, table: Option<&str>, wanted: &[String]) -> ChainPlan {
    let prefix = format!("-A {CHAIN} ");
    let rules = listed.lines().filter_map(|line| line.strip_prefix(&prefix));
    let rules: Vec<&str> = rules.collect();
    let drops = listed.lines().any(|line| line == "-P FORWARD DROP");
    let is_mine = |rule: &str| {
        let instance = instance_of(rule);
        instance.is_some_and(|instance| table.is_none_or(|table| table == instance))
    };
    let mine = rules.iter().enumerate().filter(|(_, rule)| is_mine(rule));
    let mine: Vec<(usize, Vec<&str>)> = mine.map(|(place, rule)| (place, normal(rule))).collect();
    let behind_others = rules.iter().rposition(|rule| instance_of(rule).is_none());
    let mut kept = Vec::new();
    let mut add = Vec::new();
    for wanted in wanted.iter().filter(|_| drops) {
        let words = normal(wanted);
        let same = mine.iter().rfind(|(_, rule)| *rule == words);
        match same.map(|(place, _)| *place) {
            Some(place) if Some(place) > behind_others => kept.push(place),
            _ => add.push(wanted.clone()),
        }
    }
    let surplus = mine.iter().map(|(place, _)| *place);
    let surplus = surplus.filter(|place| !kept.contains(place));
    let remove = surplus.map(|place| rules[place].to_owned()).collect();
    ChainPlan { add, remove }
}

/// The rules of a bridge in a filter of this family, if it has a subnet of it. The comment has no character for which it would be listed
/// between quotes.
fn accepts(table: &str, bridge: &BridgeRules, family: NftFamily) -> Vec<String> {
    let subnets = bridge.subnets.iter();
    let subnets: Vec<_> = subnets.filter(|subnet| subnet.family() == family).collect();
    if subnets.is_empty() {
        return Vec::new();
    }
    let texts = subnets.into_iter();
    let texts = texts.map(|one| format!("{}/{}", one.address(), one.prefix()));
    let conditions = accept_conditions(bridge.name.as_str(), texts, bridge.is_gateway);
    let rules = conditions.into_iter();
    rules
        .map(|condition| format!("{condition} -m comment --comment {table} -j ACCEPT"))
        .collect()
}

/// The words of a rule. One that has blanks between quotes is of others, and is only passed over.
fn words_of(rule: &str) -> impl Iterator<Item = &str> {
    rule.split_whitespace().map(|word| {
        let inner = word
            .strip_prefix('"')
            .and_then(|word| word.strip_suffix('"'));
        inner.unwrap_or(word)
    })
}

/// The instance of the daemon whose rule it is, by its comment; `None` if it is of others.
fn instance_of(rule: &str) -> Option<&str> {
    let mut words = words_of(rule).skip_while(|word| *word != "--comment");
    let comment = words.nth(1)?;
    TableName::of_table(comment).map(|_| comment)
}

/// A form that is the same for rules that differ only in the order in which a program lists conditions.
fn normal(rule: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = words_of(rule).flat_map(|word| word.split(',')).collect();
    parts.sort_unstable();
    parts
}

/// Runs a program that is known to be there, and returns what it printed.
fn called(program: &str, arguments: &[&str], input: &str) -> Result<String, IptablesError> {
    call(program, arguments, input)?.ok_or_else(|| IptablesError::Run {
        command: shown(program, arguments),
        source: ErrorKind::NotFound.into(),
    })
}

/// Runs a program, and returns what it printed; `None` if the node does not have it.
fn call(program: &str, arguments: &[&str], input: &str) -> Result<Option<String>, IptablesError> {
    let cannot_run = |source| IptablesError::Run {
        command: shown(program, arguments),
        source,
    };
    // Files of memory, which nothing fills as it would a pipe.
    let given = memory_file_of(input).map_err(cannot_run)?;
    let mut printed = memory_file().map_err(cannot_run)?;
    let mut complaints = memory_file().map_err(cannot_run)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(given)
        .stdout(printed.try_clone().map_err(cannot_run)?)
        .stderr(complaints.try_clone().map_err(cannot_run)?);
    let status = match ended(&mut command) {
        Ok(Some(status)) => status,
        Ok(None) => {
            return Err(IptablesError::Late {
                command: shown(program, arguments),
                limit: LIMIT,
            });
        }
        Err(fault) if fault.kind() == ErrorKind::NotFound => return Ok(None),
        Err(fault) => return Err(cannot_run(fault)),
    };
    if !status.success() {
        let text = text_of(&mut complaints).map_err(cannot_run)?;
        return Err(IptablesError::Failed {
            command: shown(program, arguments),
            code: status.code(),
            text: text.trim().chars().take(ERROR_MAX).collect(),
        });
    }
    text_of(&mut printed).map(Some).map_err(cannot_run)
}

fn shown(program: &str, arguments: &[&str]) -> String {
    [&[program], arguments].concat().join(" ")
}

fn memory_file() -> io::Result<File> {
    Ok(File::from(memfd_create(
        "switchyard-iptables",
        MFdFlags::MFD_CLOEXEC,
    )?))
}

/// A file with this text, to be read from its beginning.
fn memory_file_of(text: &str) -> io::Result<File> {
    let mut file = memory_file()?;
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn text_of(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(OUTPUT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Runs a command to its end; `None` if it was killed because that took too long.
fn ended(command: &mut Command) -> io::Result<Option<ExitStatus>> {
    let mut child = command.spawn()?;
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests;
