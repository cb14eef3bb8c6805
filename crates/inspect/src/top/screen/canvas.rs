//! Writes text to a position, truncated to the area, and splits areas.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

#[derive(Debug)]
pub struct Canvas<'a>(pub &'a mut Buffer);

/// Writes to the given line of the area.
pub fn put(canvas: &mut Canvas<'_>, area: Rect, line: u16, text: &str, style: Style) {
    if line < area.height && area.width > 0 {
        canvas.0.set_stringn(area.x, area.y + line, text, area.width.into(), style);
    }
}

/// Writes to the first line, aligned to the right.
pub fn put_right(canvas: &mut Canvas<'_>, area: Rect, text: &str, style: Style) {
    let width = u16::try_from(text.chars().count()).unwrap_or(u16::MAX).min(area.width);
    put(canvas, Rect { x: area.right() - width, width, ..area }, 0, text, style);
}

/// Splits off up to `lines` lines at the top of the area.
pub fn cut_top(area: &mut Rect, lines: u16) -> Rect {
    let height = lines.min(area.height);
    let top = Rect { height, ..*area };
    area.y += height;
    area.height -= height;
    top
}

pub fn cut_bottom(area: &mut Rect, lines: u16) -> Rect {
    let height = lines.min(area.height);
    area.height -= height;
    Rect { y: area.bottom(), height, ..*area }
}

pub fn cut_right(area: &mut Rect, columns: u16) -> Rect {
    let width = columns.min(area.width);
    area.width -= width;
    Rect { x: area.right(), width, ..*area }
}

pub fn cut_left(area: &mut Rect, columns: u16) -> Rect {
    let width = columns.min(area.width);
    let left = Rect { width, ..*area };
    area.x += width;
    area.width -= width;
    left
}
