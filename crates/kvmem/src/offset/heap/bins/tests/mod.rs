mod bins;
mod history;
mod splits;
