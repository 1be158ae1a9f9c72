//! Content of a table in the kernel, and the steps that make it what it should be.

use std::collections::{BTreeMap, BTreeSet};

use super::element::{DumpedElements, Element};
use super::expression::Expression;
use super::family::{NftFamily, TableName};
use super::message::{NFTABLES, NfMessage, attribute, attributes, messages, number, text};
use super::rules::{BaseChain, chains, rule_expressions, rules};
use super::sets::TableSet;
use super::transaction::{
    ACCEPT, Action, CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TYPE, ELEMENTS_LIST, ELEMENTS_SET,
    HOOK_NUMBER, HOOK_PRIORITY, NEW_CHAIN, NEW_ELEMENTS, NEW_RULE, NEW_SET, NEW_TABLE, RULE_CHAIN,
    RULE_EXPRESSIONS, SET_DATA_LENGTH, SET_DATA_TYPE, SET_FLAGS, SET_KEY_LENGTH, SET_KEY_TYPE,
    SET_NAME, SetShape, TABLE_FLAGS, TABLE_NAME, TableStep, element_steps, table_steps,
};

/// Parameters that the kernel keeps of a chain, rules aside.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ChainShape {
    kind: String,
    hook: u32,
    priority: u32,
    policy: u32,
}

/// All of a table but its elements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Structure {
    flags: u32,
    sets: BTreeMap<String, SetShape>,
    /// Those with a hook.
    chains: BTreeMap<String, ChainShape>,
    /// The rules of each chain, in their order.
    rules: BTreeMap<String, Vec<Vec<Expression>>>,
    /// Number of chains, sets and rules with a form that ours never have.
    foreign: usize,
}

/// A table as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundTable {
    structure: Structure,
    elements: BTreeSet<Element>,
    /// Number of elements that are not understood.
    foreign: usize,
}

/// Changes by a repair of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Nothing: all was as it should be.
    Nothing,
    /// Elements.
    Elements {
        /// Number of elements that were missing.
        added: usize,
        /// Number of these that are published ports.
        ports: usize,
        /// Number of elements that should not be there.
        removed: usize,
    },
    /// The table was missing, or had other sets, chains or rules, and was made anew.
    Whole,
}

impl Repair {
    /// Returns whether published ports were missing.
    pub(crate) const fn has_published(self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Elements { ports, .. } => ports > 0,
            Self::Whole => true,
        }
    }
}

impl FoundTable {
    /// Returns the elements that it has.
    #[must_use]
    pub fn elements(&self) -> &BTreeSet<Element> {
        &self.elements
    }

    /// Returns whether it has our sets, chains and rules and nothing else.
    #[must_use]
    pub fn is_intact(&self, family: NftFamily) -> bool {
        self.foreign == 0 && self.structure == Structure::of(family)
    }

    /// Reads a table from dumps: messages about the table of this name, and behind it those about its sets, chains, rules and elements.
    /// Returns `None` if that table is not among them. What is about other tables is passed over.
    pub(super) fn read(dumps: &[u8], family: NftFamily, table: &str) -> Option<Self> {
        let mut structure: Option<Structure> = None;
        let mut elements: BTreeMap<TableSet, DumpedElements> = BTreeMap::new();
        for message in messages(dumps) {
            let body = message.body();
            if message.family() != family.number() || text(body, TABLE_NAME) != Some(table) {
                continue;
            }
            if message.kind == NFTABLES | NEW_TABLE {
                structure.get_or_insert_default().flags = number(body, TABLE_FLAGS).unwrap_or(0);
            } else if let Some(structure) = &mut structure {
                add(structure, &mut elements, family, &message);
            }
        }
        let mut structure = structure?;
        let mut found = BTreeSet::new();
        let mut foreign = 0;
        for (set, dumped) in elements {
            let (of_set, others) = dumped.finish(set);
            found.extend(of_set);
            foreign += others;
        }
        // A chain without rules is not among the rules.
        for name in structure.chains.keys() {
            structure.rules.entry(name.clone()).or_default();
        }
        Some(Self {
            structure,
            elements: found,
            foreign,
        })
    }
}

/// Returns the table that a message of a list of tables is about, if it is one of ours, of whatever instance.
pub(super) fn table_of(message: &NfMessage<'_>) -> Option<(NftFamily, TableName)> {
    if message.kind != NFTABLES | NEW_TABLE {
        return None;
    }
    let family = NftFamily::from_number(message.family())?;
    let table = TableName::of_table(text(message.body(), TABLE_NAME)?)?;
    Some((family, table))
}

/// Adds what a message says about our table.
fn add(
    structure: &mut Structure,
    elements: &mut BTreeMap<TableSet, DumpedElements>,
    family: NftFamily,
    message: &NfMessage<'_>,
) {
    let body = message.body();
    let known = if message.kind == NFTABLES | NEW_SET {
        read_set(body).map(|(name, shape)| structure.sets.insert(name, shape).is_none())
    } else if message.kind == NFTABLES | NEW_CHAIN {
        read_chain(body).map(|(name, shape)| structure.chains.insert(name, shape).is_none())
    } else if message.kind == NFTABLES | NEW_RULE {
        read_rule(body).map(|(chain, rule)| {
            structure.rules.entry(chain).or_default().push(rule);
            true
        })
    } else if message.kind == NFTABLES | NEW_ELEMENTS {
        let set = text(body, ELEMENTS_SET).and_then(TableSet::from_name);
        set.filter(|set| set.is_of(family)).map(|set| {
            let list = attribute(body, ELEMENTS_LIST).unwrap_or_default();
            elements.entry(set).or_default().add(set, family, list);
            true
        })
    } else {
        Some(true)
    };
    structure.foreign += usize::from(known != Some(true));
}

fn read_set(body: &[u8]) -> Option<(String, SetShape)> {
    let shape = SetShape {
        flags: number(body, SET_FLAGS).unwrap_or(0),
        key_type: number(body, SET_KEY_TYPE)?,
        key_length: number(body, SET_KEY_LENGTH)?,
        data_type: number(body, SET_DATA_TYPE).unwrap_or(0),
        data_length: number(body, SET_DATA_LENGTH).unwrap_or(0),
    };
    Some((text(body, SET_NAME)?.to_owned(), shape))
}

/// Reads a chain with a hook; ours all have one.
fn read_chain(body: &[u8]) -> Option<(String, ChainShape)> {
    let hook = attribute(body, CHAIN_HOOK)?;
    let shape = ChainShape {
        kind: text(body, CHAIN_TYPE)?.to_owned(),
        hook: number(hook, HOOK_NUMBER)?,
        priority: number(hook, HOOK_PRIORITY)?,
        policy: number(body, CHAIN_POLICY)?,
    };
    Some((text(body, CHAIN_NAME)?.to_owned(), shape))
}

fn read_rule(body: &[u8]) -> Option<(String, Vec<Expression>)> {
    let list = attribute(body, RULE_EXPRESSIONS)?;
    let expressions = attributes(list).map(|(_, part)| Expression::read(part));
    let chain = text(body, RULE_CHAIN)?.to_owned();
    Some((chain, expressions.collect()))
}

impl Structure {
    /// Returns that of our table.
    fn of(family: NftFamily) -> Self {
        let shape = |chain: &BaseChain| ChainShape {
            kind: chain.kind.to_owned(),
            hook: chain.hook.0,
            priority: chain.priority.0.cast_unsigned(),
            policy: ACCEPT,
        };
        let expressions = |chain: &BaseChain| -> Vec<Vec<Expression>> {
            let rules = rules(chain, family).into_iter();
            rules.map(|rule| rule_expressions(&rule, family)).collect()
        };
        let name = |chain: &BaseChain| chain.name.to_owned();
        let sets = TableSet::of(family);
        Self {
            flags: 0,
            sets: sets
                .map(|set| (set.name().to_owned(), SetShape::of(set, family)))
                .collect(),
            chains: chains(family)
                .iter()
                .map(|chain| (name(chain), shape(chain)))
                .collect(),
            rules: chains(family)
                .iter()
                .map(|chain| (name(chain), expressions(chain)))
                .collect(),
            foreign: 0,
        }
    }
}

/// Returns the steps that make a table what it should be, and what they change.
pub(super) fn repair(
    family: NftFamily,
    found: Option<&FoundTable>,
    wanted: &BTreeSet<Element>,
) -> (Vec<TableStep>, Repair) {
    let intact = found.filter(|found| found.is_intact(family));
    let Some(intact) = intact else {
        let action = Action::DeleteTable;
        let mut steps: Vec<_> = found
            .map(|_| TableStep { family, action })
            .into_iter()
            .collect();
        steps.extend(table_steps(family));
        steps.extend(steps_of(family, true, wanted.iter()));
        return (steps, Repair::Whole);
    };
    let surplus: Vec<_> = intact.elements.difference(wanted).collect();
    let missing: Vec<_> = wanted.difference(&intact.elements).collect();
    let change = if surplus.is_empty() && missing.is_empty() {
        Repair::Nothing
    } else {
        let is_port = |element: &&&Element| matches!(element, Element::Port { .. });
        Repair::Elements {
            added: missing.len(),
            ports: missing.iter().filter(is_port).count(),
            removed: surplus.len(),
        }
    };
    let mut steps = steps_of(family, false, surplus.into_iter());
    steps.extend(steps_of(family, true, missing.into_iter()));
    (steps, change)
}

/// Returns the steps that add or remove these elements, those of one set together.
pub(super) fn steps_of<'a>(
    family: NftFamily,
    add: bool,
    elements: impl Iterator<Item = &'a Element>,
) -> Vec<TableStep> {
    let mut of_sets: BTreeMap<TableSet, Vec<Element>> = BTreeMap::new();
    for element in elements {
        of_sets
            .entry(element.set())
            .or_default()
            .push(element.clone());
    }
    of_sets
        .iter()
        .flat_map(|(set, elements)| element_steps(family, *set, add, elements))
        .collect()
}

#[cfg(test)]
mod tests;
