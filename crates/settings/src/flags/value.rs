//! The types of flag values: how each is parsed, printed, and named in the help.

use std::collections::BTreeMap;

use model::address::parse_ip;

use crate::config::v1alpha1::{FlushFrequency, VModuleItem};
use crate::duration::Duration;
use crate::go::{float_text, parse_bool, parse_float, parse_int, parse_level, quote, split_host_port};
use crate::quantity::Quantity;
use crate::version::VersionFlag;

/// A reference to the value of a flag; the variant is the type of the flag.
#[derive(Debug)]
pub enum FlagValue<'a> {
    Bool(&'a mut bool),
    Duration(&'a mut Duration),
    Float(&'a mut f32),
    Flush(&'a mut FlushFrequency),
    Gates(&'a mut BTreeMap<String, bool>),
    Int(&'a mut i32),
    Ip(&'a mut String),
    IpPort(&'a mut String),
    Level(&'a mut u32),
    List(&'a mut Option<Vec<String>>),
    /// Text that only validation checks, and the type name that the help prints.
    Mode(&'a mut String, &'static str),
    Quantity(&'a mut Quantity),
    Text(&'a mut String),
    Version(&'a mut VersionFlag),
    VModule(&'a mut Vec<VModuleItem>),
}

impl FlagValue<'_> {
    /// Sets the value from the command line. With `append`, a list is extended instead of replaced.
    pub fn set(&mut self, text: &str, append: bool) -> Result<(), String> {
        match self {
            Self::Bool(value) => **value = parse_bool(text)?,
            Self::Duration(value) => **value = Duration::parse(text)?,
            Self::Float(value) => **value = parse_float(text)?,
            Self::Flush(value) => **value = Duration::parse(text)?.into(),
            Self::Gates(gates) => gates.extend(parse_gates(text)?),
            Self::Int(value) => **value = parse_int(text)?,
            // Upstream keeps the default if the address is empty.
            Self::Ip(_) | Self::IpPort(_) if text.is_empty() => {}
            Self::Ip(value) => {
                check_ip(text)?;
                text.clone_into(value);
            }
            Self::IpPort(value) => {
                check_ip_port(text)?;
                text.clone_into(value);
            }
            Self::Level(value) => **value = parse_level(text)?,
            Self::List(list) => {
                let items = parse_list(text)?;
                match list {
                    Some(list) if append => list.extend(items),
                    _ => **list = Some(items),
                }
            }
            Self::Quantity(value) => **value = Quantity::parse(text)?,
            Self::Mode(value, _) | Self::Text(value) => text.clone_into(value),
            Self::Version(value) => value.set(text)?,
            Self::VModule(items) => items.extend(parse_vmodule(text)?),
        }
        Ok(())
    }

    /// The value as pflag prints it.
    pub fn text(&self) -> String {
        match self {
            Self::Bool(value) => value.to_string(),
            Self::Duration(value) => value.to_string(),
            Self::Float(value) => float_text(**value),
            Self::Flush(value) => value.duration.to_string(),
            Self::Gates(gates) => {
                let pairs: Vec<_> = gates.iter().map(|(name, on)| format!("{name}={on}")).collect();
                pairs.join(",")
            }
            Self::Int(value) => value.to_string(),
            Self::Level(value) => value.to_string(),
            Self::List(list) => {
                let items: Vec<_> = list.iter().flatten().map(|item| csv_field(item)).collect();
                format!("[{}]", items.join(","))
            }
            Self::Quantity(value) => value.to_string(),
            Self::Ip(value) | Self::IpPort(value) | Self::Mode(value, _) | Self::Text(value) => {
                (*value).clone()
            }
            Self::Version(value) => value.to_string(),
            Self::VModule(items) => {
                let pairs: Vec<_> =
                    items.iter().map(|item| format!("{}={}", item.file_pattern, item.verbosity)).collect();
                pairs.join(",")
            }
        }
    }

    /// pflag's `NoOptDefVal`: the value of a flag without one, for types that allow that.
    pub fn value_when_bare(&self) -> Option<&'static str> {
        matches!(self, Self::Bool(_) | Self::Version(_)).then_some("true")
    }

    /// The name of the type in the help; empty for booleans.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "",
            Self::Duration(_) | Self::Flush(_) => "duration",
            Self::Float(_) => "float32",
            Self::Gates(_) => "mapStringBool",
            Self::Int(_) => "int32",
            Self::Ip(_) => "ip",
            Self::IpPort(_) => "ipport",
            Self::Level(_) => "Level",
            Self::List(_) => "strings",
            Self::Mode(_, name) => name,
            Self::Quantity(_) => "quantity",
            Self::Text(_) => "string",
            Self::Version(_) => "version[=true]",
            Self::VModule(_) => "pattern=N,...",
        }
    }

    /// The default as the help prints it; `None` for zero values, which pflag does not print.
    pub fn default_text(&self) -> Option<String> {
        let text = self.text();
        if ["", "0", "0s", "[]", "false"].contains(&text.as_str()) {
            return None;
        }
        Some(if matches!(self, Self::Text(_)) { quote(&text) } else { text })
    }
}

fn check_ip(text: &str) -> Result<(), String> {
    parse_ip(text).map(|_| ()).ok_or_else(|| format!("{} is not a valid IP address", quote(text)))
}

fn check_ip_port(text: &str) -> Result<(), String> {
    if parse_ip(text).is_some() {
        return Ok(());
    }
    let (host, port) = split_host_port(text)
        .map_err(|error| format!("{} is not in a valid format (ip or ip:port): {error}", quote(text)))?;
    check_ip(host)?;
    // Port 0 is accepted here and rejected by validation, as upstream does.
    let is_number = !port.starts_with('+') && port.parse::<u16>().is_ok();
    if is_number { Ok(()) } else { Err(format!("{} is not a valid number", quote(port))) }
}

fn parse_gates(text: &str) -> Result<Vec<(String, bool)>, String> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').ok_or("malformed pair, expect string=bool")?;
            let (name, value) = (name.trim(), value.trim());
            match parse_bool(value) {
                Ok(on) => Ok((name.to_owned(), on)),
                Err(error) => Err(format!("invalid value of {name}: {value}, err: {error}")),
            }
        })
        .collect()
}

fn parse_vmodule(text: &str) -> Result<Vec<VModuleItem>, String> {
    let patterns = text.split(',').filter(|pattern| !pattern.is_empty());
    patterns
        .map(|pattern| {
            let (name, level) = pattern
                .split_once('=')
                .filter(|(name, level)| !name.is_empty() && !level.is_empty() && !level.contains('='))
                .ok_or_else(|| format!("{} does not have the pattern=N format", quote(pattern)))?;
            let verbosity = parse_level(level)
                .map_err(|error| format!("parsing verbosity in {}: {error}", quote(pattern)))?;
            Ok(VModuleItem { file_pattern: name.to_owned(), verbosity })
        })
        .collect()
}

/// Parses one line of CSV. pflag ignores everything after the first line, and so does this.
fn parse_list(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut items = vec![String::new()];
    let mut quoted = false;
    let mut chars = text.char_indices().peekable();
    let mut at_start = true;
    while let Some((index, c)) = chars.next() {
        let item = items.last_mut().expect("the list starts with one item");
        match c {
            '"' if quoted && chars.next_if(|(_, next)| *next == '"').is_some() => item.push('"'),
            '"' if quoted => {
                quoted = false;
                if chars.peek().is_some_and(|(_, next)| !matches!(next, ',' | '\n')) {
                    return Err(csv_error(index, "extraneous or missing \" in quoted-field"));
                }
            }
            '"' if at_start => quoted = true,
            '"' => return Err(csv_error(index, "bare \" in non-quoted-field")),
            ',' if !quoted => {
                items.push(String::new());
                at_start = true;
                continue;
            }
            '\n' if !quoted => break,
            _ => item.push(c),
        }
        at_start = false;
    }
    if quoted {
        return Err(csv_error(text.len(), "extraneous or missing \" in quoted-field"));
    }
    Ok(items)
}

fn csv_error(index: usize, message: &str) -> String {
    format!("parse error on line 1, column {}: {message}", index + 1)
}

fn csv_field(text: &str) -> String {
    let needs_quotes = text.contains([',', '"', '\n', '\r']) || text.starts_with([' ', '\t']);
    if needs_quotes { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
