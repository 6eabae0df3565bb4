"""What the lessons share: claim boxes, small models and data, drawings, explorers, the planner, played servers."""
