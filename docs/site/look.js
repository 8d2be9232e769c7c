// What a reader would notice, in the page as it is shown now. The value is a list of faults.
(() => {
    const faults = [];
    const root = document.documentElement;
    if (!document.title.trim()) {
        faults.push("the page has no title");
    }
    if (!document.querySelector("article h1")) {
        faults.push("the page has no heading");
    }
    if (!document.querySelector("meta[name=viewport]")) {
        faults.push("the page has no viewport, so telephones show it as wide as a screen");
    }
    if (root.scrollWidth > root.clientWidth) {
        const beyond = (element) => element.getBoundingClientRect().right > root.clientWidth + 1;
        // An element within one that scrolls is cut off there.
        const scrolls = (element) =>
            element && element !== root &&
            (getComputedStyle(element).overflowX !== "visible" || scrolls(element.parentElement));
        const wide = [...document.querySelectorAll("article *")]
            .find((element) => beyond(element) && !scrolls(element.parentElement));
        faults.push(
            `the page is ${root.scrollWidth} pixels wide in a window of ${root.clientWidth}` +
            (wide ? `, because of: ${wide.outerHTML.slice(0, 120)}` : ""));
    }

    // Contrast as WCAG 2 defines it: relative luminances of a text and of what lies behind it.
    const channels = (color) => {
        const numbers = color.match(/[\d.]+/g).map(Number);
        const scale = color.startsWith("color(") ? 255 : 1;
        const [r, g, b] = numbers.slice(0, 3).map((number) => number * scale);
        return { r, g, b, alpha: numbers.length > 3 ? numbers[3] : 1 };
    };
    const luminance = ({ r, g, b }) => {
        const linear = [r, g, b]
            .map((channel) => channel / 255)
            .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    };
    const over = (front, back) => {
        const mix = (name) => front[name] * front.alpha + back[name] * (1 - front.alpha);
        return { r: mix("r"), g: mix("g"), b: mix("b"), alpha: 1 };
    };
    const behind = (element) => {
        if (!element) {
            return { r: 255, g: 255, b: 255, alpha: 1 };
        }
        const color = channels(getComputedStyle(element).backgroundColor);
        return color.alpha === 1 ? color : over(color, behind(element.parentElement));
    };
    const seen = new Set();
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        // Texts whose elements and parents are of the same kinds look the same.
        const key = [element, element.parentElement, element.parentElement?.parentElement]
            .map((each) => each && `${each.tagName}.${each.className}`)
            .join(" in ");
        if (!texts.currentNode.data.trim() || seen.has(key) || !element.checkVisibility({
            opacityProperty: true, visibilityProperty: true,
        })) {
            continue;
        }
        seen.add(key);
        const style = getComputedStyle(element);
        const back = behind(element);
        const [low, high] = [luminance(over(channels(style.color), back)), luminance(back)]
            .sort((a, b) => a - b);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) {
            faults.push(
                `the contrast of "${texts.currentNode.data.trim().slice(0, 30)}" (${key}) is ` +
                `${ratio.toFixed(2)}, at least 4.5`);
        }
    }
    return faults;
})()
