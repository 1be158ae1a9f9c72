//! Rules: which packets are routed by which table.

use nix::errno::Errno;

use super::error::NetlinkError;
use super::message::{Attributes, Request};
use super::names::{IpPrefix, LinkName, check_family, family, put_address};
use super::uapi::{
    FR_ACT_TO_TBL, FRA_DST, FRA_IIFNAME, FRA_PRIORITY, FRA_SRC, FRA_TABLE, NLM_F_CREATE,
    NLM_F_EXCL, RTM_DELRULE, RTM_NEWRULE,
};

/// Length of `struct fib_rule_hdr`.
const FIB_RULE_HDR: usize = 12;

/// Packets from and to these addresses are routed by a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Source of the packets; all addresses of a family are those of a prefix of length 0.
    pub from: IpPrefix,
    /// Destination of the packets, if that matters: of the same family.
    pub to: Option<IpPrefix>,
    /// The device by which they arrive, if that matters.
    pub arriving_by: Option<LinkName>,
    /// The routing table.
    pub table: u32,
    /// Rules with lower numbers are asked first. The main table's has 32766.
    pub priority: u32,
}

/// Adds a rule. Refused with `EEXIST` if there is the same one.
///
/// # Errors
/// [`NetlinkError::Value`] if its addresses are of different families.
pub fn add_rule(rule: &Rule) -> Result<Request, NetlinkError> {
    let doing = format!("add the rule {}", said(rule));
    request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule, doing)
}

/// Deletes a rule. One that is gone is success.
///
/// # Errors
/// Those of [`add_rule`].
pub fn delete_rule(rule: &Rule) -> Result<Request, NetlinkError> {
    let doing = format!("delete the rule {}", said(rule));
    Ok(request(RTM_DELRULE, 0, rule, doing)?.done_by(&[Errno::ENOENT]))
}

fn request(kind: u16, flags: u16, rule: &Rule, doing: String) -> Result<Request, NetlinkError> {
    check_family(rule.from.address(), [rule.to.map(IpPrefix::address)])?;
    let request = Request::new(kind, flags, &header(rule), doing).acknowledged();
    Ok(request.with(|all| {
        put(all, FRA_SRC, rule.from);
        if let Some(to) = rule.to {
            put(all, FRA_DST, to);
        }
        if let Some(link) = &rule.arriving_by {
            all.text(FRA_IIFNAME, link.as_str());
        }
        all.u32(FRA_TABLE, rule.table);
        all.u32(FRA_PRIORITY, rule.priority);
    }))
}

fn put(all: &mut Attributes, kind: u16, prefix: IpPrefix) {
    if prefix.length() > 0 {
        put_address(all, kind, prefix.network().address());
    }
}

fn said(rule: &Rule) -> String {
    format!(
        "of priority {} for packets from {} to table {}",
        rule.priority, rule.from, rule.table
    )
}

/// A `struct fib_rule_hdr`: family, lengths of destination and source, type of service, table, two unused, action, flags.
fn header(rule: &Rule) -> [u8; FIB_RULE_HDR] {
    let mut bytes = [0; FIB_RULE_HDR];
    bytes[0] = family(rule.from.address());
    bytes[1] = rule.to.map_or(0, IpPrefix::length);
    bytes[2] = rule.from.length();
    bytes[7] = FR_ACT_TO_TBL;
    bytes
}
