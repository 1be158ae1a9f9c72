//! `/etc/passwd` and `/etc/group`, read as streams: since the author of an image controls their sizes,
//! neither a file, nor a line, nor a list of members is ever in memory as a whole.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufRead};

use super::{Id, MAX_GROUPS};

/// The longest field that is read, in bytes: longer than any name of a user or group. A longer field counts
/// as empty.
const FIELD_LIMIT: usize = 4096;

/// A line of `/etc/passwd`.
pub(super) struct Account {
    pub(super) name: Vec<u8>,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A query of `/etc/group`.
#[derive(Default)]
pub(super) struct GroupQuery<'a> {
    /// Names of groups whose ids are wanted.
    pub(super) names: BTreeSet<&'a str>,
    /// The user whose groups are wanted.
    pub(super) member: Option<&'a [u8]>,
}

/// The result of a query of `/etc/group`.
#[derive(Default)]
pub(super) struct Groups {
    /// The ids of the wanted groups that exist; of several with the same name, the first.
    pub(super) numbers: HashMap<String, u32>,
    /// The ids of the groups that the user is in, each once, in the order of the file. If there are too many,
    /// the list is cut off after one more than a process can have.
    pub(super) of_member: Vec<u32>,
}

/// The first line of `/etc/passwd` that is about this user.
pub(super) fn find_account(passwd: impl BufRead, user: &Id) -> io::Result<Option<Account>> {
    let mut fields = Fields::new(passwd);
    while fields.next_line()? {
        let Some(account) = account(&mut fields)? else {
            continue;
        };
        let found = match user {
            Id::Number(uid) => account.uid == *uid,
            Id::Name(name) => account.name == name.as_bytes(),
        };
        if found {
            return Ok(Some(account));
        }
    }
    Ok(None)
}

/// Runs a query of `/etc/group`.
pub(super) fn find_groups(group: impl BufRead, wish: &GroupQuery<'_>) -> io::Result<Groups> {
    let mut groups = Groups::default();
    let mut seen = BTreeSet::new();
    let mut fields = Fields::new(group);
    while groups.of_member.len() <= MAX_GROUPS && fields.next_line()? {
        let Some(name) = name(&mut fields)? else {
            continue;
        };
        fields.next(b":")?;
        let Some(gid) = fields.number()? else {
            continue;
        };
        if let Ok(name) = std::str::from_utf8(&name)
            && wish.names.contains(name)
        {
            groups.numbers.entry(name.to_owned()).or_insert(gid);
        }
        if let Some(member) = wish.member
            && fields.lists(member)?
            && seen.insert(gid)
        {
            groups.of_member.push(gid);
        }
    }
    Ok(groups)
}

fn account(fields: &mut Fields<impl BufRead>) -> io::Result<Option<Account>> {
    let Some(name) = name(fields)? else {
        return Ok(None);
    };
    fields.next(b":")?;
    let (Some(uid), Some(gid)) = (fields.number()?, fields.number()?) else {
        return Ok(None);
    };
    Ok(Some(Account { name, uid, gid }))
}

/// The name at the beginning of a line; `None` for a comment and for a line without a name.
fn name(fields: &mut Fields<impl BufRead>) -> io::Result<Option<Vec<u8>>> {
    let name = fields.next(b":")?.unwrap_or_default().trim_ascii_start();
    Ok(Some(name)
        .filter(|name| !name.is_empty() && !name.starts_with(b"#"))
        .map(<[u8]>::to_vec))
}

/// Reads lines field by field.
struct Fields<R> {
    reader: R,
    field: Vec<u8>,
    /// The byte that ended the last field; `None` before the first line.
    ended_by: Option<u8>,
    at_end: bool,
}

impl<R: BufRead> Fields<R> {
    const fn new(reader: R) -> Self {
        Self {
            reader,
            field: Vec::new(),
            ended_by: None,
            at_end: false,
        }
    }

    /// Advances to the next line; `false` at the end.
    fn next_line(&mut self) -> io::Result<bool> {
        while !matches!(self.ended_by, None | Some(b'\n')) {
            self.next(b"")?;
        }
        self.ended_by = Some(b':');
        Ok(!self.at_end && !self.reader.fill_buf()?.is_empty())
    }

    /// The next field of the line, which ends with the line or one of these bytes; `None` if the line has
    /// ended. A field that is too long is returned as empty.
    fn next(&mut self, ends: &[u8]) -> io::Result<Option<&[u8]>> {
        if self.ended_by == Some(b'\n') {
            return Ok(None);
        }
        self.field.clear();
        let mut whole = true;
        loop {
            let piece = self.reader.fill_buf()?;
            let end = piece
                .iter()
                .position(|byte| *byte == b'\n' || ends.contains(byte));
            let length = end.unwrap_or(piece.len());
            whole &= self.field.len() + length <= FIELD_LIMIT;
            if whole {
                self.field.extend_from_slice(&piece[..length]);
            }
            self.at_end = piece.is_empty();
            if let Some(end) = end {
                self.ended_by = Some(piece[end]);
                self.reader.consume(end + 1);
                break;
            }
            if self.at_end {
                self.ended_by = Some(b'\n');
                break;
            }
            self.reader.consume(length);
        }
        Ok(Some(if whole { &self.field } else { &[] }))
    }

    /// The next field as the id of a user or group; `None` if it is not a valid one. The highest number means
    /// "no change" to the kernel.
    fn number(&mut self) -> io::Result<Option<u32>> {
        let field = self.next(b":")?.unwrap_or_default();
        let text = std::str::from_utf8(field).unwrap_or_default().trim();
        Ok(text.parse().ok().filter(|number| *number != u32::MAX))
    }

    /// Returns whether the list in the next field has this member.
    fn lists(&mut self, member: &[u8]) -> io::Result<bool> {
        while let Some(listed) = self.next(b",:")? {
            if listed.trim_ascii() == member {
                return Ok(true);
            }
            if self.ended_by == Some(b':') {
                break;
            }
        }
        Ok(false)
    }
}
