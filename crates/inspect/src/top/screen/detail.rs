//! One service port: its endpoints and frontends.

use ratatui::layout::Rect;
use ratatui::style::Style;

use super::canvas::{Canvas, cut_top, put};
use super::list::colour_bar;
use super::{FAINT, STRONG};
use crate::top::meter::{AddressRate, Row};
use crate::top::state::TopView;
use crate::top::text::{bar, rate, share_and_due, share_title, shorten, total};

const RATE: usize = 9;
/// Wider if the shares that are due are shown, too.
const SHARE: [usize; 2] = [8, 11];
const TOTAL: usize = 10;
const MAX_BAR_WIDTH: usize = 24;

#[derive(Clone, Copy, Debug)]
struct Columns {
    address: usize,
    share: usize,
    bar: usize,
}

impl Columns {
    /// Bars use the space that addresses leave.
    fn new(width: u16, row: &Row) -> Self {
        let addresses = row.endpoints.iter().chain(&row.frontends).map(|part| part.address.chars().count());
        let longest = addresses.max().unwrap_or_default().max("ENDPOINT".len());
        let has_due = row.endpoints.iter().any(|part| part.due.is_some());
        let [without, with] = SHARE;
        let share = if has_due { with } else { without };
        let room = usize::from(width).saturating_sub(RATE + share + TOTAL + 3);
        let address = longest.min(room);
        Self { address, share, bar: (room - address).saturating_sub(2).min(MAX_BAR_WIDTH) }
    }

    fn line(self, [address, rate, share, bar, total]: [&str; 5]) -> String {
        let address = shorten(address, self.address);
        let (width, shares, length) = (self.address, self.share, self.bar);
        format!(" {address:<width$}{rate:>RATE$}{share:>shares$}  {bar:<length$}{total:>TOTAL$}")
    }
}

pub fn draw(state: &mut TopView, mut area: Rect, canvas: &mut Canvas<'_>) {
    let rows = state.rows();
    let Some(row) = rows.get(state.position(&rows)).copied() else {
        put(canvas, area, 1, "  This service port no longer has endpoints.", FAINT);
        return;
    };
    let name = format!("{}/{}", row.name, row.name.protocol);
    let width = usize::from(area.width).saturating_sub(2);
    put(canvas, cut_top(&mut area, 1), 0, &format!(" {}", shorten(&name, width)), STRONG);
    let figures = format!(
        " {} new/s   {} total   {}   {}",
        rate(row.flow.rate),
        total(row.flow.total),
        count_of(row.endpoints.len(), "endpoint"),
        count_of(row.frontends.len(), "frontend")
    );
    put(canvas, cut_top(&mut area, 1), 0, &figures, Style::new());
    cut_top(&mut area, 1);

    let columns = Columns::new(area.width, row);
    let mut lines =
        vec![(columns.line(["ENDPOINT", "NEW/S", share_title(&row.endpoints), "", "TOTAL"]), STRONG)];
    lines.extend(row.endpoints.iter().map(|part| line(part, columns)));
    lines.push((String::new(), Style::new()));
    lines.push((columns.line(["FRONTEND", "NEW/S", "", "", "TOTAL"]), STRONG));
    lines.extend(row.frontends.iter().map(|part| line(part, columns)));

    let page = usize::from(area.height);
    let scrolled = state.scrolled.min(lines.len().saturating_sub(page));
    for (number, (text, style)) in (0..area.height).zip(lines.iter().skip(scrolled)) {
        put(canvas, area, number, text, *style);
        colour_bar(canvas, Rect { y: area.y + number, height: 1, ..area });
    }
    let count = lines.len();
    (state.scrolled, state.page, state.lines) = (scrolled, page, count);
}

fn line(part: &AddressRate, columns: Columns) -> (String, Style) {
    let AddressRate { address, flow, share, .. } = part;
    let (percent, length) = match share {
        Some(share) => (share_and_due(part), bar(*share, columns.bar)),
        None => (String::new(), String::new()),
    };
    let style = if flow.rate.unwrap_or_default() > 0.0 { Style::new() } else { FAINT };
    (columns.line([address, &rate(flow.rate), &percent, &length, &total(flow.total)]), style)
}

fn count_of(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
