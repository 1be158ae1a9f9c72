//! The steps of a transaction, their form in messages, and what the kernel's answers mean.

use std::fmt;

use nix::errno::Errno;

use super::element::Element;
use super::error::NftError;
use super::family::NftFamily;
use super::message::{ACK, APPEND, CREATE, NFTABLES, NfHead, NfWriter};
use super::rules::{BaseChain, chains, rule_expressions, rule_text, rules};
use super::sets::{KeyPart, TableSet, length, type_number};
use super::socket::NfAnswer;
use super::statement::Statement;

/// `NFNL_MSG_BATCH_BEGIN`, `..._END`: what is between is done as a whole or not at all.
const BEGIN: u16 = 16;
const END: u16 = 17;
/// `NFNL_BATCH_GENID`: the number of the ruleset that the transaction expects.
const GENERATION: u16 = 1;
/// The subsystem of a batch, without its place in the upper byte.
const NFTABLES_SUBSYSTEM: u16 = 10;
/// Elements of one message, whose list has at most 64 KiB.
const ELEMENTS_OF_MESSAGE: usize = 256;

pub(super) const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
pub(super) const NEW_CHAIN: u16 = 3;
pub(super) const NEW_RULE: u16 = 6;
pub(super) const NEW_SET: u16 = 9;
pub(super) const NEW_ELEMENTS: u16 = 12;
const DELETE_ELEMENTS: u16 = 14;

/// The attribute of tables, chains, rules, sets and lists of elements that names the table.
pub(super) const TABLE_NAME: u16 = 1;
pub(super) const TABLE_FLAGS: u16 = 2;
pub(super) const CHAIN_NAME: u16 = 3;
pub(super) const CHAIN_HOOK: u16 = 4;
pub(super) const HOOK_NUMBER: u16 = 1;
pub(super) const HOOK_PRIORITY: u16 = 2;
pub(super) const CHAIN_POLICY: u16 = 5;
pub(super) const CHAIN_TYPE: u16 = 7;
pub(super) const RULE_CHAIN: u16 = 2;
pub(super) const RULE_EXPRESSIONS: u16 = 4;
pub(super) const SET_NAME: u16 = 2;
pub(super) const SET_FLAGS: u16 = 3;
pub(super) const SET_KEY_TYPE: u16 = 4;
pub(super) const SET_KEY_LENGTH: u16 = 5;
pub(super) const SET_DATA_TYPE: u16 = 6;
pub(super) const SET_DATA_LENGTH: u16 = 7;
const SET_ID: u16 = 10;
const SET_USERDATA: u16 = 13;
/// For `nft`: keys are in host byte order, without which it shows names of devices as empty. Kind, length and the number 1.
const HOST_BYTE_ORDER: [u8; 6] = [0, 4, 1, 0, 0, 0];
pub(super) const ELEMENTS_SET: u16 = 2;
pub(super) const ELEMENTS_LIST: u16 = 3;
/// `NFT_SET_INTERVAL`, `NFT_SET_MAP`.
const INTERVAL: u32 = 4;
const MAP: u32 = 8;
/// `NF_ACCEPT`, the policy of our chains.
pub(super) const ACCEPT: u32 = 1;

/// One change of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableStep {
    pub(super) family: NftFamily,
    pub(super) action: Action,
}

/// Change that a step makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    AddTable,
    /// With all that is in it.
    DeleteTable,
    AddSet(TableSet),
    AddChain(&'static BaseChain),
    AddRule(&'static BaseChain, Vec<Statement>),
    AddElements(TableSet, Vec<Element>),
    RemoveElements(TableSet, Vec<Element>),
}

/// A transaction as it is sent.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) bytes: Vec<u8>,
    /// The sequence number of its beginning. Each step has the next one.
    pub(super) first: u32,
    /// Number of its steps.
    pub(super) steps: u32,
}

/// Outcome of a transaction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All was done.
    Done,
    /// Nothing was done: the ruleset is no longer the one that the transaction expected.
    Changed,
    /// Nothing was done, because of this step, or of the transaction as a whole.
    Refused { step: Option<u32>, errno: Errno },
    /// Not known.
    Unanswered,
}

/// Returns the steps that make the table of a family, without elements.
pub(super) fn table_steps(family: NftFamily) -> Vec<TableStep> {
    let mut actions = vec![Action::AddTable];
    actions.extend(TableSet::of(family).map(Action::AddSet));
    actions.extend(chains(family).iter().map(Action::AddChain));
    for chain in chains(family) {
        let of_chain = rules(chain, family).into_iter();
        actions.extend(of_chain.map(|rule| Action::AddRule(chain, rule)));
    }
    let step = |action| TableStep { family, action };
    actions.into_iter().map(step).collect()
}

/// Returns the steps that add or remove elements of one set.
pub(super) fn element_steps(
    family: NftFamily,
    set: TableSet,
    add: bool,
    elements: &[Element],
) -> impl Iterator<Item = TableStep> {
    elements.chunks(ELEMENTS_OF_MESSAGE).map(move |part| {
        let part = part.to_vec();
        let action = if add {
            Action::AddElements(set, part)
        } else {
            Action::RemoveElements(set, part)
        };
        TableStep { family, action }
    })
}

/// Writes a transaction on the table of this name.
///
/// It has as many sequence numbers as steps, and two more, from `first` on. With a generation the kernel does it only if the ruleset is
/// still that one. Without `commit` the kernel looks at each step and then does none. It has at most `max` bytes.
///
/// # Errors
/// [`NftError::TooLarge`].
pub(super) fn transaction(
    table: &str,
    steps: &[TableStep],
    first: u32,
    generation: Option<u32>,
    commit: bool,
    max: usize,
) -> Result<Transaction, NftError> {
    let mut writer = NfWriter::default();
    let mut sequence = first;
    let frame = |kind: u16, sequence: u32| NfHead {
        kind,
        flags: 0,
        sequence,
        family: 0,
        resource: NFTABLES_SUBSYSTEM,
    };
    writer.message(frame(BEGIN, sequence), |body| {
        if let Some(generation) = generation {
            body.number(GENERATION, generation);
        }
    });
    for (left, step) in (0..steps.len()).rev().zip(steps) {
        sequence = sequence.wrapping_add(1);
        let (kind, flags) = step.action.kind();
        let head = NfHead {
            kind: NFTABLES | kind,
            // Success is reported for a message that asks for it, after all steps were looked at: the last one stands for all.
            flags: flags | if left == 0 { ACK } else { 0 },
            sequence,
            family: step.family.number(),
            resource: 0,
        };
        let id = sequence.wrapping_sub(first);
        writer.message(head, |body| {
            body.text(TABLE_NAME, table);
            step.write(id, body);
        });
    }
    if commit {
        writer.message(frame(END, sequence.wrapping_add(1)), |_| {});
    }
    let bytes = writer
        .finish()
        .filter(|bytes| bytes.len() <= max)
        .ok_or(NftError::TooLarge { max })?;
    Ok(Transaction {
        bytes,
        first,
        steps: sequence.wrapping_sub(first),
    })
}

/// Returns what the answers to a transaction mean. Those to others are passed over.
pub(super) fn verdict(answers: &[NfAnswer], first: u32, steps: u32) -> Verdict {
    let placed = answers
        .iter()
        .map(|answer| (answer.sequence.wrapping_sub(first), answer.outcome));
    let mine: Vec<_> = placed.filter(|(place, _)| *place <= steps).collect();
    let errors = mine
        .iter()
        .filter_map(|(place, outcome)| Some((*place, outcome.err()?)));
    match errors.min_by_key(|(place, _)| *place) {
        Some((_, Errno::ERESTART)) => Verdict::Changed,
        Some((place, errno)) => Verdict::Refused {
            step: place.checked_sub(1),
            errno,
        },
        None if mine.iter().any(|(place, _)| *place == steps) => Verdict::Done,
        None => Verdict::Unanswered,
    }
}

impl Action {
    /// Returns operation and flags of its message.
    fn kind(&self) -> (u16, u16) {
        match self {
            Self::AddTable => (NEW_TABLE, CREATE),
            Self::DeleteTable => (DELETE_TABLE, 0),
            Self::AddSet(_) => (NEW_SET, CREATE),
            Self::AddChain(_) => (NEW_CHAIN, CREATE),
            Self::AddRule(..) => (NEW_RULE, CREATE | APPEND),
            Self::AddElements(..) => (NEW_ELEMENTS, CREATE),
            Self::RemoveElements(..) => (DELETE_ELEMENTS, 0),
        }
    }
}

impl TableStep {
    /// Writes all but the table's name. `id` is a number that no other step of the transaction has.
    fn write(&self, id: u32, body: &mut NfWriter) {
        match &self.action {
            Action::AddTable => body.number(TABLE_FLAGS, 0),
            Action::DeleteTable => {}
            Action::AddSet(set) => {
                body.text(SET_NAME, set.name());
                let shape = SetShape::of(*set, self.family);
                body.number(SET_FLAGS, shape.flags);
                body.number(SET_KEY_TYPE, shape.key_type);
                body.number(SET_KEY_LENGTH, shape.key_length);
                if shape.flags & MAP != 0 {
                    body.number(SET_DATA_TYPE, shape.data_type);
                    body.number(SET_DATA_LENGTH, shape.data_length);
                }
                body.number(SET_ID, id);
                if set.key().contains(&KeyPart::Device) {
                    body.bytes(SET_USERDATA, &HOST_BYTE_ORDER);
                }
            }
            Action::AddChain(chain) => {
                body.text(CHAIN_NAME, chain.name);
                body.nest(CHAIN_HOOK, |hook| {
                    hook.number(HOOK_NUMBER, chain.hook.0);
                    hook.number(HOOK_PRIORITY, chain.priority.0.cast_unsigned());
                });
                body.number(CHAIN_POLICY, ACCEPT);
                body.text(CHAIN_TYPE, chain.kind);
            }
            Action::AddRule(chain, rule) => {
                body.text(RULE_CHAIN, chain.name);
                body.nest(RULE_EXPRESSIONS, |list| {
                    for expression in rule_expressions(rule, self.family) {
                        expression.write(list);
                    }
                });
            }
            Action::AddElements(set, elements) | Action::RemoveElements(set, elements) => {
                body.text(ELEMENTS_SET, set.name());
                body.nest(ELEMENTS_LIST, |list| {
                    elements.iter().for_each(|element| element.write(list));
                });
            }
        }
    }
}

impl TableStep {
    /// Returns what it does to the table of this name, as a verb phrase.
    pub(super) fn describe(&self, table: &str) -> String {
        let of = format!("table {} {table}", self.family.name());
        match &self.action {
            Action::AddTable => format!("add {of}"),
            Action::DeleteTable => format!("delete {of}"),
            Action::AddSet(set) => format!("add {set} to {of}"),
            Action::AddChain(chain) => format!("add chain {} to {of}", chain.name),
            Action::AddRule(chain, rule) => {
                let text = rule_text(rule, self.family);
                format!("add rule \"{text}\" to chain {} of {of}", chain.name)
            }
            Action::AddElements(set, elements) => {
                format!("add {} to {set} of {of}", Shown(elements))
            }
            Action::RemoveElements(set, elements) => {
                format!("remove {} from {set} of {of}", Shown(elements))
            }
        }
    }
}

/// Elements in an error: the first one, and how many more.
struct Shown<'a>(&'a [Element]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("nothing"),
            [one] => write!(f, "{one}"),
            [first, others @ ..] => write!(f, "{first} and {} more", others.len()),
        }
    }
}

/// Parameters that the kernel keeps of a set, elements aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SetShape {
    pub(super) flags: u32,
    pub(super) key_type: u32,
    pub(super) key_length: u32,
    pub(super) data_type: u32,
    pub(super) data_length: u32,
}

impl SetShape {
    /// Returns the shape of one of our sets.
    pub(super) fn of(set: TableSet, family: NftFamily) -> Self {
        let interval = if set.has_intervals() { INTERVAL } else { 0 };
        let map = if set.data().is_empty() { 0 } else { MAP };
        Self {
            flags: interval | map,
            key_type: type_number(set.key(), family),
            key_length: length(set.key(), family),
            data_type: type_number(set.data(), family),
            data_length: length(set.data(), family),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::family::{BridgeName, Transport};
    use crate::nft::message::messages;
    use crate::nft::socket::MAX_SEND;

    fn answer(sequence: u32, errno: Option<Errno>) -> NfAnswer {
        NfAnswer {
            sequence,
            outcome: errno.map_or(Ok(()), Err),
        }
    }

    #[test]
    fn first_error_of_a_transaction_counts() {
        let refused = |step, errno| Verdict::Refused { step, errno };
        let last = answer(13, None);
        for (name, answers, wanted) in [
            ("done", vec![last], Verdict::Done),
            ("nothing", vec![], Verdict::Unanswered),
            (
                "an earlier step",
                vec![answer(12, None)],
                Verdict::Unanswered,
            ),
            (
                "another transaction",
                vec![answer(9, Some(Errno::ENOENT)), last],
                Verdict::Done,
            ),
            (
                "a later one",
                vec![answer(14, Some(Errno::ENOENT))],
                Verdict::Unanswered,
            ),
            (
                "the first step",
                vec![answer(11, Some(Errno::ENOENT)), last],
                refused(Some(0), Errno::ENOENT),
            ),
            (
                "the last step",
                vec![answer(13, Some(Errno::EEXIST))],
                refused(Some(2), Errno::EEXIST),
            ),
            (
                "two",
                vec![
                    answer(12, Some(Errno::EEXIST)),
                    answer(11, Some(Errno::ENOENT)),
                ],
                refused(Some(0), Errno::ENOENT),
            ),
            (
                "the commit",
                vec![answer(10, Some(Errno::ENOMEM)), last],
                refused(None, Errno::ENOMEM),
            ),
            (
                "no right",
                vec![answer(10, Some(Errno::EPERM))],
                refused(None, Errno::EPERM),
            ),
            (
                "generation",
                vec![answer(10, Some(Errno::ERESTART))],
                Verdict::Changed,
            ),
        ] {
            assert_eq!(verdict(&answers, 10, 3), wanted, "{name}");
        }
        let around = [answer(1, None)];
        assert_eq!(
            verdict(&around, u32::MAX, 2),
            Verdict::Done,
            "numbers begin again"
        );
    }

    #[test]
    fn errors_name_the_step() {
        let bridge = |name: &str| Element::Bridge(BridgeName::new(name).unwrap());
        let step = |action| TableStep {
            family: NftFamily::Ip6,
            action,
        };
        let forward = &chains(NftFamily::Ip6)[4];
        let rule = rules(forward, NftFamily::Ip6).remove(0);
        for (action, text) in [
            (Action::AddTable, "add table ip6 switchyard"),
            (
                Action::AddSet(TableSet::Ports),
                "add map ports to table ip6 switchyard",
            ),
            (
                Action::AddElements(TableSet::Bridges, vec![bridge("sw0"), bridge("sw1")]),
                "add \"sw0\" and 1 more to set bridges of table ip6 switchyard",
            ),
            (
                Action::RemoveElements(TableSet::Bridges, vec![bridge("sw0")]),
                "remove \"sw0\" from set bridges of table ip6 switchyard",
            ),
            (
                Action::AddRule(forward, rule),
                "add rule \"iifname @apart oifname @apart iifname . oifname != @allowed ct status ! dnat drop\" to chain filter_forward \
                 of table ip6 switchyard",
            ),
        ] {
            assert_eq!(step(action).describe("switchyard"), text);
        }
    }

    #[test]
    fn only_the_last_step_asks_for_an_answer() {
        let steps = table_steps(NftFamily::Ip4);
        for commit in [true, false] {
            let sent = transaction("switchyard", &steps, 5, Some(7), commit, MAX_SEND).unwrap();
            let sent_messages: Vec<_> = messages(&sent.bytes).collect();
            assert_eq!(sent_messages.len(), steps.len() + 1 + usize::from(commit));
            let asking: Vec<_> = sent_messages
                .iter()
                .filter(|message| message.flags & ACK != 0)
                .collect();
            assert_eq!(asking.len(), 1);
            assert_eq!(asking[0].sequence, 5 + sent.steps);
            assert_eq!(usize::try_from(sent.steps).unwrap(), steps.len());
        }
    }

    #[test]
    fn many_elements_fill_several_messages() {
        let elements: Vec<_> = (0..600_u16)
            .map(|port| Element::Port {
                at: Some("2001:db8::1".parse().unwrap()),
                protocol: Transport::Tcp,
                port,
                to: "fd00::2".parse().unwrap(),
                to_port: port,
            })
            .collect();
        let steps: Vec<_> =
            element_steps(NftFamily::Ip6, TableSet::PortsAt, true, &elements).collect();
        assert_eq!(steps.len(), 3);
        let sent = transaction("switchyard", &steps, 1, None, true, MAX_SEND).unwrap();
        assert!(messages(&sent.bytes).all(|message| message.raw.len() < 64 << 10));
        let length = sent.bytes.len();
        for (max, is_refused) in [(length, false), (length - 1, true), (0, true)] {
            let sent = transaction("switchyard", &steps, 1, None, true, max);
            let refused = matches!(sent, Err(NftError::TooLarge { max: told }) if told == max);
            assert_eq!(refused, is_refused, "{max} of {length}");
        }
    }
}
