//! Rectangles in pixels.

/// A rectangle in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    /// Its left end.
    pub left: f64,
    /// Its upper end.
    pub top: f64,
    /// Its right end.
    pub right: f64,
    /// Its lower end.
    pub bottom: f64,
}

impl Area {
    /// The rectangle with these four sides.
    pub fn new(left: f64, top: f64, right: f64, bottom: f64) -> Area {
        Area { left, top, right, bottom }
    }

    /// Whether both rectangles have pixels in common.
    pub fn meets(&self, other: &Area) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    /// Whether this rectangle lies inside the other.
    pub fn is_within(&self, other: &Area) -> bool {
        self.left >= other.left && self.right <= other.right && self.top >= other.top && self.bottom <= other.bottom
    }

    /// Distance from the nearest point of this rectangle to the given point.
    pub fn distance(&self, (x, y): (f64, f64)) -> f64 {
        (x - x.clamp(self.left, self.right)).hypot(y - y.clamp(self.top, self.bottom))
    }
}
