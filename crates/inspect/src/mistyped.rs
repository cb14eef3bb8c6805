//! What somebody may have meant whose words are no subcommand.

use super::TOOLS;

/// A line to say after what is wrong with the command line; nothing if the word is like no subcommand's name.
pub fn hint(word: &str) -> Option<String> {
    let name = nearest(word)?;
    // Whoever has the name right has it in the wrong place.
    let place = if word == name { " Subcommands come first." } else { "" };
    Some(format!("Did you mean \"kube-proxy {name}\"?{place}"))
}

/// One letter in three may be wrong.
fn nearest(word: &str) -> Option<String> {
    let typed: Vec<char> = word.to_lowercase().chars().collect();
    let tools = TOOLS.iter().map(|tool| (tool.command)().get_name().to_owned());
    let names: Vec<String> = tools.chain(["help".to_owned()]).collect();
    let most = names.iter().map(|name| name.len() / 3).max()?;
    (0..=most).find_map(|slips| {
        let is_like = |name: &&String| {
            slips <= name.len() / 3 && is_within(slips, &typed, &name.chars().collect::<Vec<_>>())
        };
        names.iter().find(is_like).cloned()
    })
}

/// Whether so many slips make one word of the other: a letter too many, missing, wrong, or swapped with the next.
fn is_within(slips: usize, typed: &[char], meant: &[char]) -> bool {
    match (typed, meant) {
        ([], rest) | (rest, []) => rest.len() <= slips,
        ([a, typed @ ..], [b, meant @ ..]) if a == b => is_within(slips, typed, meant),
        _ if slips == 0 => false,
        ([a, c, typed @ ..], [b, d, meant @ ..])
            if a == d && b == c && is_within(slips - 1, typed, meant) =>
        {
            true
        }
        ([_, typed_rest @ ..], [_, meant_rest @ ..]) => {
            is_within(slips - 1, typed_rest, meant_rest)
                || is_within(slips - 1, typed_rest, meant)
                || is_within(slips - 1, typed, meant_rest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_like_no_name_is_not_taken_for_one() {
        for word in ["x", "false", "foo", "-", "--v=2", "", "proxy", "start", "man"] {
            assert_eq!(nearest(word), None, "{word:?}");
        }
    }

    #[test]
    fn the_nearest_name_comes_first_to_mind() {
        for (word, want) in [
            ("explan", "explain"),
            ("explain", "explain"),
            ("EXPLAIN", "explain"),
            ("plann", "plan"),
            ("hlep", "help"),
            ("rendre", "render"),
            ("completions", "completion"),
            ("tpo", "top"),
            ("vrfy", "verify"),
        ] {
            assert_eq!(nearest(word).as_deref(), Some(want), "{word:?}");
        }
    }
}
