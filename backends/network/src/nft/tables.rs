//! The tables of a network namespace: made, changed, read and restored.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::SockFlag;

use super::element::{DumpedElements, Element};
use super::error::NftError;
use super::family::{NftFamily, TableName};
use super::found::{FoundTable, Repair, repair, steps_of, table_of};
use super::message::{NFTABLES, NfHead, NfMessage, NfWriter, attribute, messages, number, text};
use super::sets::TableSet;
use super::socket::{NfAnswer, NfSocket};
use super::transaction::{
    Action, ELEMENTS_LIST, ELEMENTS_SET, NEW_SET, SET_NAME, TABLE_NAME, TableStep, Verdict,
    table_steps, transaction, verdict,
};

/// Operations that list.
const GET_TABLE: u16 = 1;
pub(super) const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
const GET_ELEMENTS: u16 = 13;
/// `NFT_MSG_GETGEN`, and `NFTA_GEN_ID` of its answer.
const GET_GENERATION: u16 = 16;
const GENERATION_ID: u16 = 1;
/// The name of the table that is never made.
const PROBE_TABLE: &str = "switchyard_probe";
/// Limit of attempts at a change that follows a look, while other programs change rules.
const TRIES: usize = PAUSES_MS.len();
/// Pauses before them. Plugins change rules several times in a row for one container, on a busy node for several containers at once.
const PAUSES_MS: [u64; 8] = [0, 2, 5, 10, 20, 30, 40, 50];

/// Limit of elements that are looked for at once: each has an answer, and all answers must fit in the socket's buffer.
const LOOKS_AT_ONCE: usize = 256;

/// One change of elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElementChange {
    /// The table.
    pub family: NftFamily,
    /// True if it is added; else it is removed.
    pub add: bool,
    /// The element.
    pub element: Element,
}

/// The tables of one instance of the daemon, in the network namespace in which it was opened.
///
/// All calls block for as long as the kernel works: some 20 µs for a change of elements, some milliseconds for a whole table. A call that
/// is killed has done all of its transaction or nothing. Several sockets, also of several processes, may change the tables side by side;
/// a transaction of one never mixes with that of another. No other table is touched.
#[derive(Debug)]
pub struct NftTables {
    socket: NfSocket,
    table: TableName,
}

impl NftTables {
    /// Opens a socket in the network namespace of the calling thread, for the tables of this name.
    ///
    /// # Errors
    /// [`NftError::Socket`].
    pub fn open(table: TableName) -> Result<Self, NftError> {
        let socket =
            NfSocket::open(0, SockFlag::empty()).map_err(|source| NftError::Socket { source })?;
        Ok(Self { socket, table })
    }

    /// Returns the tables of all instances of the daemon that there are in the network namespace of the calling thread: none on a kernel
    /// without nf_tables.
    ///
    /// # Errors
    /// [`NftError::Socket`], [`NftError::Query`].
    pub fn list() -> Result<BTreeSet<(NftFamily, TableName)>, NftError> {
        let mut found = BTreeSet::new();
        let mut socket = match NfSocket::open(0, SockFlag::empty()) {
            // The kernel has no netfilter.
            Err(Errno::EPROTONOSUPPORT) => return Ok(found),
            opened => opened.map_err(|source| NftError::Socket { source })?,
        };
        for family in NftFamily::TABLES {
            let dump = socket.dump(
                NFTABLES | GET_TABLE,
                family.number(),
                |_| {},
                |message| table_of(message).is_some(),
            );
            match dump {
                Ok(dump) => found.extend(messages(&dump).filter_map(|message| table_of(&message))),
                // It has no nf_tables: a request that it knows has no other reason to be invalid.
                Err(Errno::EINVAL) => {}
                Err(errno) => return Err(NftError::query("list tables")(errno)),
            }
        }
        Ok(found)
    }

    /// Returns the port id of its socket, by which [`super::NftMonitor`] tells its changes from those of others.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Looks whether the kernel can do all that the table of a family needs, and changes nothing.
    ///
    /// The kernel may load modules for it, which takes some 100 ms, once.
    ///
    /// # Errors
    /// [`NftError::Lacking`] names what it cannot do.
    pub fn probe(&mut self, family: NftFamily) -> Result<(), NftError> {
        let steps = table_steps(family);
        match self.submit(PROBE_TABLE, &steps, None, false)? {
            Verdict::Done => Ok(()),
            Verdict::Refused { step, errno } => Err(NftError::Lacking {
                doing: described(PROBE_TABLE, &steps, step),
                source: errno,
            }),
            Verdict::Changed | Verdict::Unanswered => Err(NftError::Unanswered {
                doing: described(PROBE_TABLE, &steps, None),
            }),
        }
    }

    /// Changes elements, in one transaction: first those that are removed go, then those that are added come, so that a port can get
    /// another holder. Idempotent: what is there already or not there any more is as it should be. A port that leads to another container
    /// than the removed element says is left to that one.
    ///
    /// The transaction does not depend on what other programs do meanwhile, unless a subnet that is removed is not there. Which ports lead
    /// where must not be changed by another process between the look and the removal: one daemon has the tables of a network namespace.
    ///
    /// # Errors
    /// [`NftError::Refused`] with ENOENT if there is no table to add to, with EEXIST if a port that is added leads elsewhere; then nothing was
    /// changed. [`NftError::WrongFamily`], [`NftError::Contended`], [`NftError::TooLarge`], [`NftError::Unanswered`], [`NftError::Query`].
    pub fn change(&mut self, changes: &[ElementChange]) -> Result<(), NftError> {
        for change in changes {
            fitting(change.family, &change.element)?;
        }
        let present = self
            .present(changes)
            .map_err(NftError::query("look for elements that are removed"))?;
        // What one cannot ask for is taken to be there: only subnets.
        let may_be_there = |change: &ElementChange| {
            let key = (change.family, change.element.clone());
            change.element.set().has_intervals() || present.contains(&key)
        };
        match self.commit(&steps(changes, may_be_there), None) {
            Err(error) if error.is_missing() && changes.iter().any(|change| !change.add) => {
                self.change_after_a_look(changes)
            }
            done => done,
        }
    }

    /// As `change`, but with a look at all elements.
    fn change_after_a_look(&mut self, changes: &[ElementChange]) -> Result<(), NftError> {
        let families: BTreeSet<_> = changes.iter().map(|change| change.family).collect();
        self.after_a_look("change elements", |tables| {
            let mut present = BTreeMap::new();
            for family in &families {
                present.insert(*family, tables.read(*family)?);
            }
            let is_there = |change: &ElementChange| {
                let table = present.get(&change.family).and_then(Option::as_ref);
                table.is_some_and(|table| table.elements().contains(&change.element))
            };
            Ok((steps(changes, is_there), ()))
        })
    }

    /// Returns which of the elements that are removed are there as they are. The kernel removes an element of a map by its key, wherever
    /// that leads by now.
    fn present(
        &mut self,
        changes: &[ElementChange],
    ) -> nix::Result<BTreeSet<(NftFamily, Element)>> {
        let removed: Vec<_> = changes
            .iter()
            .filter(|change| !change.add && !change.element.set().has_intervals())
            .collect();
        let mut present = BTreeSet::new();
        // The sets that only the owner of their table may look into.
        let mut hidden = BTreeSet::new();
        for part in removed.chunks(LOOKS_AT_ONCE) {
            let count = u32::try_from(part.len()).map_err(|_| Errno::EMSGSIZE)?;
            let first = self.socket.sequences(count);
            let mut writer = NfWriter::default();
            for (sequence, change) in (0..count).zip(part) {
                let head = NfHead {
                    kind: NFTABLES | GET_ELEMENTS,
                    flags: 0,
                    sequence: first.wrapping_add(sequence),
                    family: change.family.number(),
                    resource: 0,
                };
                writer.message(head, |body| {
                    body.text(TABLE_NAME, self.table.as_str());
                    body.text(ELEMENTS_SET, change.element.set().name());
                    body.nest(ELEMENTS_LIST, |list| change.element.write(list));
                });
            }
            self.socket.send(&writer.finish().ok_or(Errno::EMSGSIZE)?)?;
            let mut failed = None;
            self.socket.queued(|message| {
                let place = usize::try_from(message.sequence.wrapping_sub(first)).ok();
                let Some(change) = place.and_then(|place| part.get(place)) else {
                    return;
                };
                match NfAnswer::read(message).and_then(|answer| answer.outcome.err()) {
                    None => present.extend(listed(message)),
                    // There is no such element, set or table.
                    Some(Errno::ENOENT) => {}
                    Some(Errno::EPERM) => {
                        hidden.insert((change.family, change.element.set()));
                    }
                    Some(errno) => failed = Some(errno),
                }
            })?;
            if let Some(errno) = failed {
                return Err(errno);
            }
        }
        self.check_hidden(&hidden)?;
        Ok(present)
    }

    /// Looks whether there is one of these sets, whose elements some kernels from 5.12 on show to nobody but the owner of the table. One that is
    /// there may have what is looked for, which leads packets as long as its owner runs: it does not count as absent.
    fn check_hidden(&mut self, hidden: &BTreeSet<(NftFamily, TableSet)>) -> nix::Result<()> {
        let families: BTreeSet<_> = hidden.iter().map(|(family, _)| *family).collect();
        for family in families {
            let sets = match self.sets_of(family) {
                // The table is gone by now.
                Err(Errno::ENOENT) => continue,
                sets => sets?,
            };
            if sets.into_iter().any(|set| hidden.contains(&(family, set))) {
                return Err(Errno::EPERM);
            }
        }
        Ok(())
    }

    /// Makes the table of a family what it should be: with these elements and no others, and with our sets, chains and rules. If only
    /// elements differ, only they change; else the whole table is made anew, in one transaction, so that no packet meets half of it.
    ///
    /// # Errors
    /// [`NftError::Refused`], [`NftError::Contended`] if other programs changed rules during each of eight tries, [`NftError::WrongFamily`],
    /// [`NftError::TooLarge`], [`NftError::Unanswered`], [`NftError::Query`].
    pub fn restore(
        &mut self,
        family: NftFamily,
        wanted: &BTreeSet<Element>,
    ) -> Result<Repair, NftError> {
        for element in wanted {
            fitting(family, element)?;
        }
        let doing = format!("restore table {} {}", family.name(), self.table.as_str());
        self.after_a_look(&doing, |tables| {
            let found = tables.read(family)?;
            Ok(repair(family, found.as_ref(), wanted))
        })
    }

    /// Deletes the table of a family with all that is in it. Idempotent.
    ///
    /// # Errors
    /// [`NftError::Refused`], [`NftError::Unanswered`], [`NftError::Query`].
    pub fn remove(&mut self, family: NftFamily) -> Result<(), NftError> {
        let action = Action::DeleteTable;
        match self.commit(&[TableStep { family, action }], None) {
            Err(error) if error.is_missing() => Ok(()),
            done => done,
        }
    }

    /// Reads the table of a family; `None` if there is none. A transaction of others meanwhile may be in a part of the result;
    /// [`NftTables::restore`] notices that.
    ///
    /// # Errors
    /// [`NftError::Query`].
    pub fn read(&mut self, family: NftFamily) -> Result<Option<FoundTable>, NftError> {
        match self.dumps(family) {
            Ok(dumps) => Ok(FoundTable::read(&dumps, family, self.table.as_str())),
            // It was deleted before or while it was read.
            Err(Errno::ENOENT) => Ok(None),
            Err(source) => Err(NftError::Query {
                doing: format!("read table {} {}", family.name(), self.table.as_str()),
                source,
            }),
        }
    }

    fn dumps(&mut self, family: NftFamily) -> nix::Result<Vec<u8>> {
        let Self { socket, table } = self;
        let table = table.as_str();
        let number = family.number();
        let mut all = socket.ask(NFTABLES | GET_TABLE, number, |body| {
            body.text(TABLE_NAME, table)
        })?;
        for kind in [GET_SET, GET_CHAIN, GET_RULE] {
            let dump = socket.dump(
                NFTABLES | kind,
                number,
                |body| body.text(TABLE_NAME, table),
                // Kernels before 6.3 list the chains of all tables.
                |message| text(message.body(), TABLE_NAME) == Some(table),
            )?;
            all.extend(dump);
        }
        for set in sets_in(&all) {
            let dump = socket.dump(
                NFTABLES | GET_ELEMENTS,
                number,
                |body| {
                    body.text(TABLE_NAME, table);
                    body.text(ELEMENTS_SET, set.name());
                },
                |_| true,
            )?;
            all.extend(dump);
        }
        Ok(all)
    }

    /// Lists the sets of the table of a family, which also those may who do not own it.
    fn sets_of(&mut self, family: NftFamily) -> nix::Result<Vec<TableSet>> {
        let Self { socket, table } = self;
        let table = table.as_str();
        let dump = socket.dump(
            NFTABLES | GET_SET,
            family.number(),
            |body| body.text(TABLE_NAME, table),
            |message| text(message.body(), TABLE_NAME) == Some(table),
        )?;
        Ok(sets_in(&dump))
    }

    /// Looks, and does what follows from that, unless the ruleset changed in between; then both are tried again.
    fn after_a_look<T>(
        &mut self,
        doing: &str,
        mut look: impl FnMut(&mut Self) -> Result<(Vec<TableStep>, T), NftError>,
    ) -> Result<T, NftError> {
        for pause in PAUSES_MS {
            thread::sleep(Duration::from_millis(pause));
            let generation = self.generation()?;
            let (steps, result) = look(self)?;
            match self.commit(&steps, Some(generation)) {
                Err(NftError::Contended { .. }) => {}
                done => return done.map(|()| result),
            }
        }
        Err(NftError::Contended {
            doing: doing.to_owned(),
            tries: TRIES,
        })
    }

    /// Returns the number of the ruleset, which each transaction in the network namespace changes.
    fn generation(&mut self) -> Result<u32, NftError> {
        let doing = "read the number of the ruleset";
        let answer = self
            .socket
            .ask(NFTABLES | GET_GENERATION, 0, |_| {})
            .map_err(NftError::query(doing))?;
        let id = messages(&answer).find_map(|message| number(message.body(), GENERATION_ID));
        id.ok_or_else(|| NftError::query(doing)(Errno::EBADMSG))
    }

    /// Does these steps or none of them.
    fn commit(&mut self, steps: &[TableStep], generation: Option<u32>) -> Result<(), NftError> {
        if steps.is_empty() {
            return Ok(());
        }
        let table = self.table.clone();
        let doing = |step| described(table.as_str(), steps, step);
        match self.submit(table.as_str(), steps, generation, true)? {
            Verdict::Done => Ok(()),
            Verdict::Changed => Err(NftError::Contended {
                doing: doing(None),
                tries: 1,
            }),
            Verdict::Refused { step, errno } => Err(NftError::Refused {
                doing: doing(step),
                source: errno,
            }),
            Verdict::Unanswered => Err(NftError::Unanswered { doing: doing(None) }),
        }
    }

    /// Sends a transaction, and returns what became of it.
    fn submit(
        &mut self,
        table: &str,
        steps: &[TableStep],
        generation: Option<u32>,
        commit: bool,
    ) -> Result<Verdict, NftError> {
        let count = u32::try_from(steps.len()).unwrap_or(u32::MAX - 2);
        let first = self.socket.sequences(count.saturating_add(2));
        let max = self.socket.longest_send;
        let sent = transaction(table, steps, first, generation, commit, max)?;
        let query = |source| NftError::Query {
            doing: described(table, steps, None),
            source,
        };
        self.socket.send(&sent.bytes).map_err(|source| {
            // From a kernel that needs more of the buffer for itself than is left to it.
            if source == Errno::EMSGSIZE {
                NftError::TooLarge { max }
            } else {
                query(source)
            }
        })?;
        let answers = self.socket.answers().map_err(query)?;
        Ok(verdict(&answers, sent.first, sent.steps))
    }
}

/// Refuses an element whose address is of the other family.
fn fitting(family: NftFamily, element: &Element) -> Result<(), NftError> {
    if element.fits(family) {
        return Ok(());
    }
    Err(NftError::WrongFamily {
        element: element.to_string(),
        family: family.name(),
    })
}

/// Returns the elements in an answer.
fn listed(message: &NfMessage<'_>) -> Vec<(NftFamily, Element)> {
    let family = NftFamily::from_number(message.family());
    let set = text(message.body(), ELEMENTS_SET).and_then(TableSet::from_name);
    let list = attribute(message.body(), ELEMENTS_LIST);
    let (Some(family), Some(set), Some(list)) = (family, set, list) else {
        return Vec::new();
    };
    let mut dumped = DumpedElements::default();
    dumped.add(set, family, list);
    let (elements, _) = dumped.finish(set);
    elements
        .into_iter()
        .map(|element| (family, element))
        .collect()
}

/// Returns our sets in a dump.
fn sets_in(dumps: &[u8]) -> Vec<TableSet> {
    let found: BTreeSet<_> = messages(dumps)
        .filter(|message| message.kind == NFTABLES | NEW_SET)
        .filter_map(|message| {
            let name = text(message.body(), SET_NAME)?;
            TableSet::from_name(name)
        })
        .collect();
    found.into_iter().collect()
}

/// Returns the steps of these changes; of what is removed only what `is_there`.
fn steps(changes: &[ElementChange], is_there: impl Fn(&ElementChange) -> bool) -> Vec<TableStep> {
    let mut steps = Vec::new();
    for add in [false, true] {
        for family in NftFamily::TABLES {
            let of_kind = changes
                .iter()
                .filter(|change| change.family == family && change.add == add)
                .filter(|change| add || is_there(change))
                .map(|change| &change.element);
            // An element twice in a transaction would be missing for the second removal.
            let once: BTreeSet<_> = of_kind.collect();
            steps.extend(steps_of(family, add, once.into_iter()));
        }
    }
    steps
}

/// Returns what the step with this place does, or what the first one does and how many more there are.
fn described(table: &str, steps: &[TableStep], place: Option<u32>) -> String {
    let step = place
        .and_then(|place| usize::try_from(place).ok())
        .and_then(|place| steps.get(place));
    match (step, steps) {
        (Some(step), _) => step.describe(table),
        (None, [one]) => one.describe(table),
        (None, [first, others @ ..]) => {
            let first = first.describe(table);
            format!("{first} and do {} more steps", others.len())
        }
        (None, []) => "change nothing".to_owned(),
    }
}

#[cfg(test)]
pub(in crate::nft) mod tests;
