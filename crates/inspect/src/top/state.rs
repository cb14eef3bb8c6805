//! What the view is at: what was seen, and what the keys have made of it.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::meter::{Name, Picture, Row, busiest_first};

/// Rates to remember: as many as the widest terminal shows.
const HISTORY: usize = 500;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Rate,
    Total,
    Name,
}

impl Sort {
    pub fn word(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Total => "total",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Rate => Self::Total,
            Self::Total => Self::Name,
            Self::Name => Self::Rate,
        }
    }

    fn order(self, a: &Row, b: &Row) -> Ordering {
        let by_name = a.name.cmp(&b.name);
        match self {
            Self::Rate => busiest_first(&a.flow, &b.flow).then(by_name),
            Self::Total => b.flow.total.cmp(&a.flow.total).then(by_name),
            Self::Name => by_name,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOutcome {
    GoOn,
    Quit,
}

#[derive(Debug, Default)]
pub struct TopView {
    pub picture: Option<Picture>,
    /// Why there is nothing new to see.
    pub trouble: Option<String>,
    /// Rates of all service ports together, the latest last.
    pub history: VecDeque<f64>,
    pub sort: Sort,
    pub reversed: bool,
    /// What names or addresses have to contain to be shown.
    pub search: String,
    /// Whether keys go into the search.
    pub is_typing: bool,
    pub helps: bool,
    /// The first one, until somebody moves.
    selected: Option<Name>,
    /// Whether the endpoints of the selected service port are shown.
    pub is_open: bool,
    /// The first line of those to be shown.
    pub scrolled: usize,
    /// The first row that was shown.
    pub first: usize,
    /// Rows that fit on a page; as the screen last was.
    pub page: usize,
    /// Lines that there are about the endpoints; as the screen last was.
    pub lines: usize,
}

impl TopView {
    /// There was a look at the counters, or there should have been.
    pub fn learn(&mut self, looked: Result<Picture, String>) {
        match looked {
            Ok(picture) => {
                if let Some(rate) = picture.flow.rate {
                    self.history.push_back(rate);
                }
                while self.history.len() > HISTORY {
                    self.history.pop_front();
                }
                self.picture = Some(picture);
                self.trouble = None;
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    /// Service ports to show, in order.
    pub fn rows(&self) -> Vec<&Row> {
        let wanted = self.search.to_lowercase();
        let all = self.picture.iter().flat_map(|picture| &picture.rows);
        let mut rows: Vec<&Row> = all.filter(|row| matches(row, &wanted)).collect();
        rows.sort_by(|a, b| self.sort.order(a, b));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Which of these rows is selected.
    pub fn position(&self, rows: &[&Row]) -> usize {
        let is_it = |row: &&Row| Some(&row.name) == self.selected.as_ref();
        rows.iter().position(is_it).unwrap_or_default()
    }

    pub fn hear(&mut self, key: KeyEvent) -> KeyOutcome {
        if key.kind == KeyEventKind::Release {
            return KeyOutcome::GoOn;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyOutcome::Quit } else { KeyOutcome::GoOn };
        }
        if self.helps {
            self.helps = false;
            return KeyOutcome::GoOn;
        }
        if self.is_typing {
            self.type_in(key.code);
            return KeyOutcome::GoOn;
        }
        self.command(key.code)
    }

    fn type_in(&mut self, key: KeyCode) {
        if let KeyCode::Char(letter) = key {
            self.search.push(letter);
        } else if key == KeyCode::Backspace {
            self.search.pop();
        } else if key == KeyCode::Enter {
            self.is_typing = false;
        } else if key == KeyCode::Esc {
            self.is_typing = false;
            self.search.clear();
        } else {
            self.go(key);
        }
    }

    fn command(&mut self, key: KeyCode) -> KeyOutcome {
        if let KeyCode::Char(letter) = key {
            match letter {
                'q' => return KeyOutcome::Quit,
                '?' | 'h' => self.helps = true,
                '/' => {
                    self.is_typing = true;
                    self.close();
                }
                's' => self.sort = self.sort.next(),
                'r' => self.reversed = !self.reversed,
                'j' => self.go(KeyCode::Down),
                'k' => self.go(KeyCode::Up),
                _ => {}
            }
        } else if key == KeyCode::Enter || key == KeyCode::Right {
            self.open();
        } else if key == KeyCode::Left {
            self.close();
        } else if key == KeyCode::Esc {
            if self.is_open { self.close() } else { self.search.clear() }
        } else {
            self.go(key);
        }
        KeyOutcome::GoOn
    }

    fn open(&mut self) {
        // From now on it is this one, also where it moves.
        self.select(|position| position);
        self.is_open = self.selected.is_some() && !self.rows().is_empty();
        self.scrolled = 0;
    }

    fn close(&mut self) {
        self.is_open = false;
        self.scrolled = 0;
    }

    fn go(&mut self, key: KeyCode) {
        let page = self.page.max(1);
        let (back, forth) = if key == KeyCode::Up {
            (1, 0)
        } else if key == KeyCode::Down {
            (0, 1)
        } else if key == KeyCode::PageUp {
            (page, 0)
        } else if key == KeyCode::PageDown {
            (0, page)
        } else if key == KeyCode::Home {
            (usize::MAX, 0)
        } else if key == KeyCode::End {
            (0, usize::MAX)
        } else {
            return;
        };
        let step = |position: usize| position.saturating_sub(back).saturating_add(forth);
        if self.is_open {
            self.scrolled = step(self.scrolled).min(self.lines.saturating_sub(page));
        } else {
            self.select(step);
        }
    }

    fn select(&mut self, step: impl FnOnce(usize) -> usize) {
        let rows = self.rows();
        let position = step(self.position(&rows)).min(rows.len().saturating_sub(1));
        self.selected = rows.get(position).map(|row| row.name.clone());
    }
}

/// `wanted` in lower case.
fn matches(row: &Row, wanted: &str) -> bool {
    wanted.is_empty()
        || row.name.to_string().to_lowercase().contains(wanted)
        || row.frontends.iter().chain(&row.endpoints).any(|part| part.address.contains(wanted))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::meter::Meter;
    use super::super::meter::tests::{page, service_port};
    use super::*;

    /// Three of them: the rates are those of the names, the totals the other way round.
    fn state() -> TopView {
        let at = |second: u64| {
            page(vec![
                service_port("cart", &[("10.96.0.1:80", 3_000 + second, &[("10.244.0.1:80", 1)])]),
                service_port("pay", &[("10.96.0.2:80", 2_000 + 2 * second, &[("10.244.0.2:80", 1)])]),
                service_port("till", &[("10.96.0.3:80", 1_000 + 3 * second, &[("10.244.0.3:80", 1)])]),
            ])
        };
        let mut meter = Meter::default();
        let mut state = TopView { page: 10, lines: 30, ..TopView::default() };
        for second in 0..2 {
            state.learn(Ok(meter.look(at(second), Duration::from_secs(second))));
        }
        state
    }

    fn press(state: &mut TopView, keys: &str) -> KeyOutcome {
        let mut next = KeyOutcome::GoOn;
        for word in keys.split(' ') {
            let code = match word {
                "enter" => KeyCode::Enter,
                "esc" => KeyCode::Esc,
                "left" => KeyCode::Left,
                "right" => KeyCode::Right,
                "up" => KeyCode::Up,
                "down" => KeyCode::Down,
                "pgup" => KeyCode::PageUp,
                "pgdn" => KeyCode::PageDown,
                "home" => KeyCode::Home,
                "end" => KeyCode::End,
                "backspace" => KeyCode::Backspace,
                letter => KeyCode::Char(letter.chars().next().unwrap()),
            };
            next = state.hear(code.into());
        }
        next
    }

    fn names(state: &TopView) -> Vec<&str> {
        state.rows().iter().map(|row| row.name.service.as_str()).collect()
    }

    fn selected(state: &TopView) -> &str {
        let rows = state.rows();
        rows.get(state.position(&rows)).map_or("", |row| &row.name.service)
    }

    #[test]
    fn rows_are_sorted_as_asked() {
        let mut state = state();
        assert_eq!(names(&state), ["till", "pay", "cart"], "by rate");
        press(&mut state, "s");
        assert_eq!(names(&state), ["cart", "pay", "till"], "by total");
        press(&mut state, "s r");
        assert_eq!(names(&state), ["till", "pay", "cart"], "by name, turned around");
        press(&mut state, "s r");
        assert_eq!((names(&state), state.sort), (vec!["till", "pay", "cart"], Sort::Rate));
    }

    #[test]
    fn the_selection_moves_and_stays_with_its_service() {
        let mut state = state();
        assert_eq!(selected(&state), "till");
        press(&mut state, "j down down");
        assert_eq!(selected(&state), "cart", "no further than the last");
        press(&mut state, "s");
        assert_eq!(selected(&state), "cart", "which is now the first");
        press(&mut state, "end");
        assert_eq!(selected(&state), "till");
        press(&mut state, "k");
        assert_eq!(selected(&state), "pay");
        press(&mut state, "pgup");
        assert_eq!(selected(&state), "cart");
        press(&mut state, "pgdn home");
        assert_eq!(selected(&state), "cart");
        state.learn(Ok(Picture::default()));
        press(&mut state, "down enter");
        assert_eq!(selected(&state), "");
        assert!(!state.is_open, "there is nothing to open");
    }

    #[test]
    fn a_search_finds_names_and_addresses() {
        let mut state = state();
        press(&mut state, "/ P A x backspace");
        assert_eq!((names(&state), state.search.as_str()), (vec!["pay"], "PA"));
        press(&mut state, "enter q");
        assert!(!state.is_typing);
        press(&mut state, "esc / 2 4 4 . 0 . 3");
        assert_eq!(names(&state), ["till"]);
        press(&mut state, "q");
        assert_eq!(names(&state), [""; 0], "a letter like any other");
        press(&mut state, "esc");
        assert_eq!((names(&state).len(), state.is_typing), (3, false));
    }

    #[test]
    fn endpoints_open_scroll_and_close() {
        let mut state = state();
        press(&mut state, "down enter down down");
        assert_eq!((state.is_open, selected(&state), state.scrolled), (true, "pay", 2));
        press(&mut state, "end");
        assert_eq!(state.scrolled, 20, "thirty lines on pages of ten");
        press(&mut state, "left right");
        assert_eq!((state.is_open, state.scrolled), (true, 0));
        press(&mut state, "esc");
        assert_eq!((state.is_open, selected(&state)), (false, "pay"));
    }

    #[test]
    fn it_ends_when_asked_to() {
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(press(&mut state(), "q"), KeyOutcome::Quit);
        assert_eq!(state().hear(ctrl_c), KeyOutcome::Quit);
        let mut typing = state();
        assert_eq!(press(&mut typing, "/ q"), KeyOutcome::GoOn);
        assert_eq!(typing.hear(ctrl_c), KeyOutcome::Quit);
        let mut reading = state();
        assert_eq!(press(&mut reading, "? q"), KeyOutcome::GoOn, "any key ends the help");
        assert_eq!(press(&mut reading, "q"), KeyOutcome::Quit);
    }

    #[test]
    fn what_was_seen_stays_while_there_is_trouble() {
        let mut state = state();
        state.learn(Err("connection refused".to_owned()));
        assert_eq!((names(&state).len(), state.history.len()), (3, 1));
        assert!(state.trouble.is_some());
        state.learn(Ok(Picture::default()));
        assert!(state.trouble.is_none());
    }
}
